package machine

import (
	"errors"
	"io"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// pair is one channel and the raw socket of its other end.
func pair(t *testing.T) (*channel, int) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	c, err := newChannel(os.NewFile(uintptr(fds[0]), "channel"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.close(); unix.Close(fds[1]) })
	return c, fds[1]
}

func TestReceiveRefusesWhatIsNoMessage(t *testing.T) {
	for name, data := range map[string]string{
		"too long":      `{"op":"ready","error":"` + strings.Repeat("x", maxMessage) + `"}`,
		"not JSON":      "ready",
		"unknown field": `{"op":"ready","extra":1}`,
		"wrong type":    `{"op":1}`,
		"two documents": `{"op":"ready"}{"op":"ready"}`,
		"negative id":   `{"op":"spawned","id":-1}`,
	} {
		c, raw := pair(t)
		before := openDescriptors(t)
		rights := unix.UnixRights(raw, raw)
		if err := unix.Sendmsg(raw, []byte(data), rights, nil, 0); err != nil {
			t.Fatal(err)
		}
		if m, _, err := c.receive(); err == nil || errors.Is(err, io.EOF) {
			t.Errorf("%s: received %+v, %v; want a named error", name, m, err)
		}
		if after := openDescriptors(t); after != before {
			t.Errorf("%s: %d descriptors open after, %d before", name, after, before)
		}
	}
}

func TestReceiveRefusesMoreDescriptorsThanAMessageHas(t *testing.T) {
	c, raw := pair(t)
	before := openDescriptors(t)
	rights := unix.UnixRights(raw, raw, raw, raw, raw, raw, raw, raw)
	if err := unix.Sendmsg(raw, []byte(`{"op":"spawned","id":1}`), rights, nil, 0); err != nil {
		t.Fatal(err)
	}
	if m, _, err := c.receive(); err == nil {
		t.Errorf("received %+v, want an error", m)
	}
	if after := openDescriptors(t); after != before {
		t.Errorf("%d descriptors open after, %d before", after, before)
	}
}

func TestReceiveTellsTheEnd(t *testing.T) {
	c, raw := pair(t)
	if err := unix.Shutdown(raw, unix.SHUT_RDWR); err != nil {
		t.Fatal(err)
	}
	if _, _, err := c.receive(); !errors.Is(err, io.EOF) {
		t.Errorf("receive at the end: %v, want io.EOF", err)
	}
}

func TestSealedFilesCannotBeChanged(t *testing.T) {
	f, err := sealed("test", map[string]string{"a": "b"}, 100)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt([]byte("x"), 0); !errors.Is(err, unix.EPERM) {
		t.Errorf("write: %v, want EPERM", err)
	}
	if err := f.Truncate(0); !errors.Is(err, unix.EPERM) {
		t.Errorf("truncate: %v, want EPERM", err)
	}
	if _, err := sealed("test", strings.Repeat("x", 100), 100); err == nil {
		t.Error("a document over its limit was taken")
	}
}
