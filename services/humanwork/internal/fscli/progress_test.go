package fscli

import (
	"bufio"
	"bytes"
	"io"
	"os"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// terminal returns both ends of a pseudo terminal.
func terminal(t *testing.T) (screen, tty *os.File) {
	t.Helper()
	screen, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Skipf("no pseudo terminals here: %v", err)
	}
	t.Cleanup(func() { screen.Close() })
	n, err := unix.IoctlGetInt(int(screen.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.IoctlSetPointerInt(int(screen.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	tty, err = os.OpenFile("/dev/pts/"+strconv.Itoa(n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tty.Close() })
	return screen, tty
}

func TestProgressOnATerminalOnly(t *testing.T) {
	screen, tty := terminal(t)
	p := newProgress(tty, "evil\x1b]0;title\x07"+strings.Repeat("x", 100), 3<<20)
	if _, err := io.Copy(io.Discard, p.reader(bytes.NewReader(make([]byte, 3<<20)))); err != nil {
		t.Fatal(err)
	}
	p.end()
	got, err := bufio.NewReader(screen).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(got, "3.0 MiB of 3.0 MiB, 100%, ") || !strings.HasSuffix(got, "\n") || strings.Contains(got, "\x1b]") || strings.Contains(got, "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx") {
		t.Errorf("the terminal shows %q", got)
	}

	for _, to := range []io.Writer{&bytes.Buffer{}, file(t)} {
		p := newProgress(to, "name", 1)
		r := strings.NewReader("x")
		if p != nil || p.reader(r) != r {
			t.Errorf("newProgress to a %T shows something", to)
		}
		p.end()
	}
}

func file(t *testing.T) *os.File {
	t.Helper()
	f, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}
