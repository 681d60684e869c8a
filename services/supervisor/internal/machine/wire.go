package machine

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// The machine channel: a SOCK_SEQPACKET pair, so that a message arrives whole or not at all, with its descriptors. Hermes's own bytes never
// travel here.
const (
	maxMessage     = 16 << 10 // bytes of one message
	maxDescriptors = 4
)

const (
	opReady   = "ready"   // machine -> supervisor: it can spawn
	opSpawn   = "spawn"   // supervisor -> machine, with the sealed memfd of the private files
	opSpawned = "spawned" // machine -> supervisor, with stdin, stdout, stderr (the supervisor's ends) and a pidfd of the child
	opFailed  = "failed"  // machine -> supervisor: a spawn's answer; ID 0: the machine's own start
	opExited  = "exited"  // machine -> supervisor: the child's whole namespace is gone
)

type message struct {
	Op           string   `json:"op"`
	ID           uint64   `json:"id,omitempty"`
	Conversation string   `json:"conversation,omitempty"`
	SessionDB    string   `json:"sessionDb,omitempty"`
	Command      []string `json:"command,omitempty"`
	Error        string   `json:"error,omitempty"`
	Denied       bool     `json:"denied,omitempty"`
	Code         int      `json:"code,omitempty"`
	Signal       int      `json:"signal,omitempty"`
}

// channel is one end. Sends may come from several goroutines; receives from one.
type channel struct{ conn *net.UnixConn }

// newChannel takes f over.
func newChannel(f *os.File) (*channel, error) {
	defer f.Close()
	conn, err := net.FileConn(f)
	if err != nil {
		return nil, fmt.Errorf("open the machine channel: %w", err)
	}
	unixConn, ok := conn.(*net.UnixConn)
	if !ok {
		conn.Close()
		return nil, errors.New("open the machine channel: not a unix socket")
	}
	return &channel{unixConn}, nil
}

func (c *channel) close() error { return c.conn.Close() }

func (c *channel) send(m message, files ...*os.File) error {
	data, err := json.Marshal(m)
	if err != nil {
		return fmt.Errorf("encode a machine message: %w", err)
	}
	if len(data) > maxMessage {
		return fmt.Errorf("send a machine message: %d bytes, the limit is %d", len(data), maxMessage)
	}
	var rights []byte
	if len(files) > 0 {
		fds := make([]int, len(files))
		for i, f := range files {
			raw, err := descriptor(f)
			if err != nil {
				return err
			}
			fds[i] = raw
		}
		rights = unix.UnixRights(fds...)
	}
	if _, _, err := c.conn.WriteMsgUnix(data, rights, nil); err != nil {
		return fmt.Errorf("send a machine message: %w", err)
	}
	return nil
}

// descriptor is f.Fd without its side effect of making the file blocking. The caller keeps f open.
func descriptor(f *os.File) (int, error) {
	raw, err := f.SyscallConn()
	if err != nil {
		return -1, fmt.Errorf("use descriptor of %s: %w", f.Name(), err)
	}
	fd := -1
	if err := raw.Control(func(p uintptr) { fd = int(p) }); err != nil {
		return -1, fmt.Errorf("use descriptor of %s: %w", f.Name(), err)
	}
	return fd, nil
}

// receive returns io.EOF when the other end is gone. The caller owns the descriptors, which are close-on-exec.
func (c *channel) receive() (message, []int, error) {
	data := make([]byte, maxMessage)
	rights := make([]byte, unix.CmsgSpace(4*maxDescriptors))
	n, rn, flags, _, err := c.conn.ReadMsgUnix(data, rights)
	if err != nil {
		return message{}, nil, err
	}
	fds, err := parseRights(rights[:rn])
	if err == nil && flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0 {
		err = errors.New("receive a machine message: cut off")
	}
	if err == nil && n == 0 && len(fds) == 0 {
		err = io.EOF
	}
	var m message
	if err == nil {
		decoder := json.NewDecoder(bytes.NewReader(data[:n]))
		decoder.DisallowUnknownFields()
		if derr := decoder.Decode(&m); derr != nil {
			err = fmt.Errorf("decode a machine message: %w", derr)
		} else if decoder.More() {
			err = errors.New("decode a machine message: more than one document")
		}
	}
	if err != nil {
		closeAll(fds)
		return message{}, nil, err
	}
	return m, fds, nil
}

func parseRights(raw []byte) ([]int, error) {
	controls, err := unix.ParseSocketControlMessage(raw)
	if err != nil {
		return nil, fmt.Errorf("parse descriptors: %w", err)
	}
	var all []int
	for i := range controls {
		fds, err := unix.ParseUnixRights(&controls[i])
		if err != nil {
			closeAll(all)
			return nil, fmt.Errorf("parse descriptors: %w", err)
		}
		all = append(all, fds...)
	}
	return all, nil
}

func closeAll(fds []int) {
	for _, fd := range fds {
		unix.Close(fd)
	}
}

// sealed returns a memfd that holds v as JSON and that nobody can change any more.
func sealed(name string, v any, limit int) (*os.File, error) {
	data, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("encode %s: %w", name, err)
	}
	if len(data) > limit {
		return nil, fmt.Errorf("encode %s: %d bytes, the limit is %d", name, len(data), limit)
	}
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, fmt.Errorf("make memfd %s: %w", name, err)
	}
	f := os.NewFile(uintptr(fd), name)
	if _, err := f.Write(data); err != nil {
		f.Close()
		return nil, fmt.Errorf("fill memfd %s: %w", name, err)
	}
	seals := unix.F_SEAL_WRITE | unix.F_SEAL_GROW | unix.F_SEAL_SHRINK | unix.F_SEAL_SEAL
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals); err != nil {
		f.Close()
		return nil, fmt.Errorf("seal memfd %s: %w", name, err)
	}
	return f, nil
}
