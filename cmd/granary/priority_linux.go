package main

import (
	"os"
	"strconv"
	"syscall"
)

// giveWay has the process take processor time only where others on the machine leave it: n is
// what nice takes. Linux keeps the priority of each thread; those that come later have that of
// their maker. Errors are no reason to stop: it then works as fast as it may.
func giveWay(n int) {
	threads, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return
	}
	for _, t := range threads {
		if id, err := strconv.Atoi(t.Name()); err == nil {
			_ = syscall.Setpriority(syscall.PRIO_PROCESS, id, n)
		}
	}
}
