"""Graph passes, one file each: functions from function to function (or module to module)."""
