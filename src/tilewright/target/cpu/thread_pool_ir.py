"""The thread pool's code. `thread_pool.py` says how it works and fills in the names with a dollar: offsets, limits, the pause."""

from __future__ import annotations

POOL_IR = """
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)
declare i64 @llvm.umin.i64(i64, i64)
declare i64 @llvm.smax.i64(i64, i64)
$PAUSE_DECLARATION

; One round of waiting: pauses, and yields at every (YIELD_MASK + 1)-th.
define internal void @tw.wait_round(i64 %round) nounwind {
  $PAUSE
  %phase = and i64 %round, $YIELD_MASK
  %due = icmp eq i64 %phase, $YIELD_MASK
  br i1 %due, label %give_way, label %done
give_way:
  call void @tw.yield()
  br label %done
done:
  ret void
}

; Worker number %index of the pool, 1 to threads - 1.
define internal ptr @tw.slot(ptr %pool, i64 %index) nounwind {
  %before = sub i64 %index, 1
  %scaled = mul i64 %before, $SLOT_BYTES
  %offset = add i64 %scaled, $SLOTS
  %slot = getelementptr i8, ptr %pool, i64 %offset
  ret ptr %slot
}

; Signals the workers 1 to %count - 1 that sleep, or all of them if %even_awake.
define internal void @tw.signal(ptr %pool, i64 %count, i1 %even_awake) nounwind {
entry:
  br label %loop
loop:
  %index = phi i64 [1, %entry], [%next, %continue]
  %more = icmp ult i64 %index, %count
  br i1 %more, label %body, label %done
body:
  %slot = call ptr @tw.slot(ptr %pool, i64 %index)
  %asleep.at = getelementptr i8, ptr %slot, i64 $ASLEEP
  %asleep = load atomic i64, ptr %asleep.at seq_cst, align 8
  %sleeps = icmp ne i64 %asleep, 0
  %needed = or i1 %sleeps, %even_awake
  br i1 %needed, label %signal, label %continue
signal:
  %lock = getelementptr i8, ptr %slot, i64 $LOCK
  %condition = getelementptr i8, ptr %slot, i64 $CONDITION
  call void @tw.lock_acquire(ptr %lock)
  call void @tw.condition_signal(ptr %condition)
  call void @tw.lock_release(ptr %lock)
  br label %continue
continue:
  %next = add i64 %index, 1
  br label %loop
done:
  ret void
}

; Whether who asks may run the slot's part of the loop %state: the first of worker and caller that does. States only grow, so a worker that
; comes late for a loop that is over finds this word at that loop's state or past it.
define internal i1 @tw.take(ptr %slot, i64 %state) nounwind {
  %taken.at = getelementptr i8, ptr %slot, i64 $TAKEN
  %last = load atomic i64, ptr %taken.at monotonic, align 8
  %open = icmp ult i64 %last, %state
  br i1 %open, label %try, label %gone
try:
  %exchange = cmpxchg ptr %taken.at, i64 %last, i64 %state acquire monotonic, align 8
  %got = extractvalue {i64, i1} %exchange, 1
  ret i1 %got
gone:
  ret i1 false
}

; Part %index of %count of the job.
define internal void @tw.run_part(ptr %pool, i64 %index, i64 %count) nounwind {
  %fn.at = getelementptr i8, ptr %pool, i64 $FN
  %args.at = getelementptr i8, ptr %pool, i64 $ARGS
  %extent.at = getelementptr i8, ptr %pool, i64 $EXTENT
  %fn = load ptr, ptr %fn.at
  %args = load ptr, ptr %args.at
  %extent = load i64, ptr %extent.at
  %size = udiv i64 %extent, %count
  %rest = urem i64 %extent, %count
  %whole = mul i64 %index, %size
  %longer = call i64 @llvm.umin.i64(i64 %index, i64 %rest)
  %begin = add i64 %whole, %longer
  %is_longer = icmp ult i64 %index, %rest
  %one = zext i1 %is_longer to i64
  %this_size = add i64 %size, %one
  %end = add i64 %begin, %this_size
  call void %fn(ptr %args, i64 %begin, i64 %end)
  ret void
}

define internal void @tw.worker(ptr %slot) nounwind {
entry:
  %pool.at = getelementptr i8, ptr %slot, i64 $POOL
  %index.at = getelementptr i8, ptr %slot, i64 $INDEX
  %done.at = getelementptr i8, ptr %slot, i64 $DONE
  %asleep.at = getelementptr i8, ptr %slot, i64 $ASLEEP
  %lock = getelementptr i8, ptr %slot, i64 $LOCK
  %condition = getelementptr i8, ptr %slot, i64 $CONDITION
  %pool = load ptr, ptr %pool.at
  %index = load i64, ptr %index.at
  %state.at = getelementptr i8, ptr %pool, i64 $STATE
  %wake.at = getelementptr i8, ptr %pool, i64 $WAKE
  br label %watch
watch:
  %seen = phi i64 [0, %entry], [%seen, %spin], [%seen, %leave], [%state, %work], [%state, %try], [%state, %part_done]
  %ticket = load atomic i64, ptr %wake.at acquire, align 8
  %over = icmp eq i64 %ticket, -1
  br i1 %over, label %exit, label %choose
choose:
  %parity = trunc i64 %ticket to i1
  %limit = select i1 %parity, i64 $AWAKE, i64 $GRACE
  br label %spin_state
spin_state:
  %round = phi i64 [0, %choose], [%next_round, %spin_on]
  %state = load atomic i64, ptr %state.at acquire, align 8
  %same = icmp eq i64 %state, %seen
  br i1 %same, label %spin, label %work
spin:
  %wake = load atomic i64, ptr %wake.at monotonic, align 8
  %same_wake = icmp eq i64 %wake, %ticket
  br i1 %same_wake, label %spin_check, label %watch
spin_check:
  %next_round = add i64 %round, 1
  %patient = icmp ult i64 %next_round, %limit
  br i1 %patient, label %spin_on, label %sleep
spin_on:
  call void @tw.wait_round(i64 %round)
  br label %spin_state

sleep:
  call void @tw.lock_acquire(ptr %lock)
  store atomic i64 1, ptr %asleep.at seq_cst, align 8
  br label %sleep_check
sleep_check:
  %late_state = load atomic i64, ptr %state.at seq_cst, align 8
  %still = icmp eq i64 %late_state, %seen
  br i1 %still, label %sleep_check_wake, label %leave
sleep_check_wake:
  %late_wake = load atomic i64, ptr %wake.at seq_cst, align 8
  %changed = icmp ne i64 %late_wake, %ticket
  %odd = trunc i64 %late_wake to i1
  %woken = and i1 %changed, %odd
  br i1 %woken, label %leave, label %sleep_on
sleep_on:
  call void @tw.condition_wait(ptr %condition, ptr %lock)
  br label %sleep_check
leave:
  store atomic i64 0, ptr %asleep.at monotonic, align 8
  call void @tw.lock_release(ptr %lock)
  br label %watch

work:
  %count = and i64 %state, $MAX_THREADS
  %takes_part = icmp ult i64 %index, %count
  br i1 %takes_part, label %try, label %watch
try:
  %got = call i1 @tw.take(ptr %slot, i64 %state)
  br i1 %got, label %part, label %watch
part:
  call void @tw.run_part(ptr %pool, i64 %index, i64 %count)
  br label %part_done
part_done:
  store atomic i64 %state, ptr %done.at release, align 8
  br label %watch
exit:
  ret void
}

define i64 @tw_pool_threads(ptr %pool) nounwind {
  %none = icmp eq ptr %pool, null
  br i1 %none, label %alone, label %read
alone:
  ret i64 1
read:
  %threads = load atomic i64, ptr %pool monotonic, align 8
  ret i64 %threads
}

define ptr @tw_pool_create(i32 %wanted) nounwind {
entry:
  %wide = sext i32 %wanted to i64
  %threads = call i64 @llvm.smax.i64(i64 %wide, i64 1)
  %too_many = icmp ugt i64 %threads, $MAX_THREADS
  br i1 %too_many, label %refuse, label %allocate
allocate:
  %workers = sub i64 %threads, 1
  %slots_bytes = mul i64 %workers, $SLOT_BYTES
  %bytes = add i64 %slots_bytes, $SLOTS
  %pool = call ptr @tw.allocate(i64 %bytes)
  %no_memory = icmp eq ptr %pool, null
  br i1 %no_memory, label %refuse, label %fill
fill:
  call void @llvm.memset.p0.i64(ptr %pool, i8 0, i64 %bytes, i1 false)
  store atomic i64 %threads, ptr %pool monotonic, align 8
  br label %loop
loop:
  %index = phi i64 [1, %fill], [%next, %continue]
  %more = icmp ult i64 %index, %threads
  br i1 %more, label %body, label %done
body:
  %slot = call ptr @tw.slot(ptr %pool, i64 %index)
  %pool.at = getelementptr i8, ptr %slot, i64 $POOL
  %index.at = getelementptr i8, ptr %slot, i64 $INDEX
  %handle = getelementptr i8, ptr %slot, i64 $HANDLE
  %lock = getelementptr i8, ptr %slot, i64 $LOCK
  %condition = getelementptr i8, ptr %slot, i64 $CONDITION
  store ptr %pool, ptr %pool.at
  store i64 %index, ptr %index.at
  call void @tw.lock_init(ptr %lock)
  call void @tw.condition_init(ptr %condition)
  %status = call i32 @tw.thread_start(ptr %handle, ptr %slot)
  %failed = icmp ne i32 %status, 0
  br i1 %failed, label %undo, label %continue
continue:
  %next = add i64 %index, 1
  br label %loop
undo:
  call void @tw.condition_destroy(ptr %condition)
  call void @tw.lock_destroy(ptr %lock)
  store atomic i64 %index, ptr %pool monotonic, align 8
  call void @tw_pool_destroy(ptr %pool)
  ret ptr null
refuse:
  ret ptr null
done:
  ret ptr %pool
}

define void @tw_pool_stop(ptr %pool) nounwind {
entry:
  %none = icmp eq ptr %pool, null
  br i1 %none, label %return, label %claim
claim:
  %owner.at = getelementptr i8, ptr %pool, i64 $OWNER
  %wake.at = getelementptr i8, ptr %pool, i64 $WAKE
  %self = call i64 @tw.thread_self()
  br label %try
try:
  %exchange = cmpxchg ptr %owner.at, i64 0, i64 %self acquire monotonic, align 8
  %owner = extractvalue {i64, i1} %exchange, 0
  %free = extractvalue {i64, i1} %exchange, 1
  %mine = icmp eq i64 %owner, %self
  %got = or i1 %free, %mine
  br i1 %got, label %stop, label %retry
retry:
  call void @tw.yield()
  br label %try
stop:
  %threads = load atomic i64, ptr %pool monotonic, align 8
  store atomic i64 -1, ptr %wake.at seq_cst, align 8
  call void @tw.signal(ptr %pool, i64 %threads, i1 true)
  br label %loop
loop:
  %index = phi i64 [1, %stop], [%next, %body]
  %more = icmp ult i64 %index, %threads
  br i1 %more, label %body, label %done
body:
  %slot = call ptr @tw.slot(ptr %pool, i64 %index)
  %handle = getelementptr i8, ptr %slot, i64 $HANDLE
  %lock = getelementptr i8, ptr %slot, i64 $LOCK
  %condition = getelementptr i8, ptr %slot, i64 $CONDITION
  call void @tw.thread_join(ptr %handle)
  call void @tw.condition_destroy(ptr %condition)
  call void @tw.lock_destroy(ptr %lock)
  %next = add i64 %index, 1
  br label %loop
done:
  store atomic i64 1, ptr %pool monotonic, align 8
  store atomic i64 0, ptr %owner.at release, align 8
  br label %return
return:
  ret void
}

define void @tw_pool_destroy(ptr %pool) nounwind {
  %none = icmp eq ptr %pool, null
  br i1 %none, label %return, label %stop
stop:
  call void @tw_pool_stop(ptr %pool)
  call void @tw.release(ptr %pool)
  br label %return
return:
  ret void
}

define void @tw_pool_begin(ptr %pool) nounwind {
entry:
  %none = icmp eq ptr %pool, null
  br i1 %none, label %return, label %claim
claim:
  %owner.at = getelementptr i8, ptr %pool, i64 $OWNER
  %depth.at = getelementptr i8, ptr %pool, i64 $DEPTH
  %wake.at = getelementptr i8, ptr %pool, i64 $WAKE
  %self = call i64 @tw.thread_self()
  %exchange = cmpxchg ptr %owner.at, i64 0, i64 %self acquire monotonic, align 8
  %owner = extractvalue {i64, i1} %exchange, 0
  %free = extractvalue {i64, i1} %exchange, 1
  br i1 %free, label %first, label %taken
taken:
  %mine = icmp eq i64 %owner, %self
  br i1 %mine, label %deeper, label %return
deeper:
  %depth = load i64, ptr %depth.at
  %more = add i64 %depth, 1
  store i64 %more, ptr %depth.at
  br label %return
first:
  store i64 1, ptr %depth.at
  %threads = load atomic i64, ptr %pool monotonic, align 8
  %several = icmp ugt i64 %threads, 1
  br i1 %several, label %wake, label %return
wake:
  %even = load atomic i64, ptr %wake.at monotonic, align 8
  %odd = add i64 %even, 1
  store atomic i64 %odd, ptr %wake.at seq_cst, align 8
  call void @tw.signal(ptr %pool, i64 %threads, i1 false)
  br label %return
return:
  ret void
}

define void @tw_pool_end(ptr %pool) nounwind {
entry:
  %none = icmp eq ptr %pool, null
  br i1 %none, label %return, label %check
check:
  %owner.at = getelementptr i8, ptr %pool, i64 $OWNER
  %depth.at = getelementptr i8, ptr %pool, i64 $DEPTH
  %wake.at = getelementptr i8, ptr %pool, i64 $WAKE
  %self = call i64 @tw.thread_self()
  %owner = load atomic i64, ptr %owner.at monotonic, align 8
  %mine = icmp eq i64 %owner, %self
  br i1 %mine, label %less, label %return
less:
  %depth = load i64, ptr %depth.at
  %shallower = sub i64 %depth, 1
  store i64 %shallower, ptr %depth.at
  %last = icmp eq i64 %shallower, 0
  br i1 %last, label %rest, label %return
rest:
  %threads = load atomic i64, ptr %pool monotonic, align 8
  %several = icmp ugt i64 %threads, 1
  br i1 %several, label %sleep, label %release
sleep:
  %odd = load atomic i64, ptr %wake.at monotonic, align 8
  %even = add i64 %odd, 1
  store atomic i64 %even, ptr %wake.at release, align 8
  br label %release
release:
  store atomic i64 0, ptr %owner.at release, align 8
  br label %return
return:
  ret void
}

define void @tw_parallel_for(ptr %pool, ptr %fn, ptr %args, i64 %extent, i64 %grain) nounwind {
entry:
  %something = icmp sgt i64 %extent, 0
  br i1 %something, label %look, label %return
look:
  %none = icmp eq ptr %pool, null
  %grain_or_1 = call i64 @llvm.smax.i64(i64 %grain, i64 1)
  %one_part = icmp ule i64 %extent, %grain_or_1
  %simple = or i1 %none, %one_part
  br i1 %simple, label %serial, label %ask
ask:
  %owner.at = getelementptr i8, ptr %pool, i64 $OWNER
  %busy.at = getelementptr i8, ptr %pool, i64 $BUSY
  %self = call i64 @tw.thread_self()
  %owner = load atomic i64, ptr %owner.at monotonic, align 8
  %mine = icmp eq i64 %owner, %self
  br i1 %mine, label %bracketed, label %bracket
bracket:
  %unowned = icmp eq i64 %owner, 0
  br i1 %unowned, label %bracket_now, label %serial
bracket_now:
  call void @tw_pool_begin(ptr %pool)
  %owner_now = load atomic i64, ptr %owner.at monotonic, align 8
  %got = icmp eq i64 %owner_now, %self
  br i1 %got, label %again, label %serial
again:
  call void @tw_parallel_for(ptr %pool, ptr %fn, ptr %args, i64 %extent, i64 %grain)
  call void @tw_pool_end(ptr %pool)
  br label %return
bracketed:
  %busy = load i64, ptr %busy.at
  %inside = icmp ne i64 %busy, 0
  %threads = load atomic i64, ptr %pool monotonic, align 8
  %alone = icmp ult i64 %threads, 2
  %not_now = or i1 %inside, %alone
  br i1 %not_now, label %serial, label %fork
fork:
  store i64 1, ptr %busy.at
  %last_index = sub i64 %extent, 1
  %full_parts = udiv i64 %last_index, %grain_or_1
  %parts = add i64 %full_parts, 1
  %count = call i64 @llvm.umin.i64(i64 %parts, i64 %threads)
  %fn.at = getelementptr i8, ptr %pool, i64 $FN
  %args.at = getelementptr i8, ptr %pool, i64 $ARGS
  %extent.at = getelementptr i8, ptr %pool, i64 $EXTENT
  %state.at = getelementptr i8, ptr %pool, i64 $STATE
  store ptr %fn, ptr %fn.at
  store ptr %args, ptr %args.at
  store i64 %extent, ptr %extent.at
  %last = load atomic i64, ptr %state.at monotonic, align 8
  %loops = lshr i64 %last, 16
  %loop_number = add i64 %loops, 1
  %high = shl i64 %loop_number, 16
  %state = or i64 %high, %count
  store atomic i64 %state, ptr %state.at seq_cst, align 8
  call void @tw.signal(ptr %pool, i64 %count, i1 false)
  call void @tw.run_part(ptr %pool, i64 0, i64 %count)
  br label %help
help:
  %late = phi i64 [1, %fork], [%next_late, %helped]
  %more_late = icmp ult i64 %late, %count
  br i1 %more_late, label %look_late, label %join
look_late:
  %late_slot = call ptr @tw.slot(ptr %pool, i64 %late)
  %got_late = call i1 @tw.take(ptr %late_slot, i64 %state)
  br i1 %got_late, label %run_late, label %helped
run_late:
  call void @tw.run_part(ptr %pool, i64 %late, i64 %count)
  %late_done.at = getelementptr i8, ptr %late_slot, i64 $DONE
  store atomic i64 %state, ptr %late_done.at monotonic, align 8
  br label %helped
helped:
  %next_late = add i64 %late, 1
  br label %help
join:
  %index = phi i64 [1, %help], [%next, %joined]
  %more = icmp ult i64 %index, %count
  br i1 %more, label %expect, label %finish
expect:
  %slot = call ptr @tw.slot(ptr %pool, i64 %index)
  %done.at = getelementptr i8, ptr %slot, i64 $DONE
  br label %wait
wait:
  %round = phi i64 [0, %expect], [%next_round, %wait_on]
  %done = load atomic i64, ptr %done.at acquire, align 8
  %is_done = icmp eq i64 %done, %state
  br i1 %is_done, label %joined, label %wait_on
wait_on:
  call void @tw.wait_round(i64 %round)
  %next_round = add i64 %round, 1
  br label %wait
joined:
  %next = add i64 %index, 1
  br label %join
finish:
  store i64 0, ptr %busy.at
  br label %return
serial:
  call void %fn(ptr %args, i64 0, i64 %extent)
  br label %return
return:
  ret void
}
"""
