package machine

import (
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"

	"humanwork.internal/services/supervisor/internal/child"
)

const (
	machineName = "humanwork-machine"
	probeName   = "humanwork-namespace-probe"
)

// Hook must be the first call of every main and TestMain that can start machines: in a re-executed machine or child-init process it runs
// that and never returns. In any other process it does nothing.
func Hook() {
	if len(os.Args) == 0 {
		return
	}
	switch os.Args[0] {
	case machineName:
		closeInherited(configFD, lockFD)
		resident()
	case child.InitName:
		closeInherited(child.StatusFD, child.PlanFD, child.HomeFD, child.LockFD)
		child.Main()
	case probeName:
		closeInherited(channelFD)
		probe()
	}
}

// closeInherited closes every descriptor above 2 that this process was given and has no use for, such as one that a C library of the
// parent left open across exec. Given ones are those without close-on-exec: the Go runtime opens its own with it.
func closeInherited(mine ...int) {
	keep := map[int]bool{0: true, 1: true, 2: true, channelFD: true}
	for _, fd := range mine {
		keep[fd] = true
	}
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return // no /proc: the start itself fails and says so
	}
	for _, e := range entries {
		fd, err := strconv.Atoi(e.Name())
		if err != nil || keep[fd] {
			continue
		}
		flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
		if err == nil && flags&unix.FD_CLOEXEC == 0 {
			unix.Close(fd)
		}
	}
}

// starter runs starts one after another on a thread that never ends: the kernel sends a machine its parent-death signal when the THREAD that
// made it ends, and Go ends threads when it likes.
var starter = sync.OnceValue(func() chan<- func() {
	work := make(chan func())
	go func() {
		runtime.LockOSThread()
		for f := range work {
			f()
		}
	}()
	return work
})

func startLocked(cmd *exec.Cmd) error {
	result := make(chan error)
	starter() <- func() { result <- cmd.Start() }
	return <-result
}
