"""Schedule rules of the CPU: for each kind of kernel a default schedule, from the kernel's structure and the machine's description."""
