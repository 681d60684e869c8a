package postgres

import (
	"net"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// Data that is never acknowledged ends a connection as soon as unanswered probes do.
func TestDialerGivesUpSilentHosts(t *testing.T) {
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer lis.Close()
	conn, err := dialer().DialContext(t.Context(), "tcp", lis.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	raw, err := conn.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	for option, want := range map[int]int{unix.TCP_USER_TIMEOUT: 11_000, unix.TCP_KEEPIDLE: 5, unix.TCP_KEEPINTVL: 2, unix.TCP_KEEPCNT: 3} {
		if err := raw.Control(func(fd uintptr) {
			if got, err := unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, option); err != nil || got != want {
				t.Errorf("socket option %d = %d, %v, want %d", option, got, err, want)
			}
		}); err != nil {
			t.Fatal(err)
		}
	}
}

// A database may be reached by a socket file, which has no such options.
func TestDialerReachesSocketFiles(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	lis, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer lis.Close()
	conn, err := dialer().DialContext(t.Context(), "unix", path)
	if err != nil {
		t.Fatal(err)
	}
	_ = conn.Close()
}
