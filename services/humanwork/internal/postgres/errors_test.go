package postgres

import (
	"errors"
	"fmt"
	"io/fs"
	"reflect"
	"syscall"
	"testing"
)

func TestErrorTypes(t *testing.T) {
	path := func(errno syscall.Errno) error {
		return fmt.Errorf("write: %w", &fs.PathError{Op: "open", Path: "/data/x", Err: errno})
	}
	exit := errors.New("exit status 1")
	tests := []struct {
		name string
		got  error
		want any // of the type wanted
	}{
		{"read-only", fileError("/data", path(syscall.EROFS)), &ErrNotWritable{}},
		{"another user's", fileError("/data", path(syscall.EACCES)), &ErrNotWritable{}},
		{"full", fileError("/data", path(syscall.ENOSPC)), &ErrDiskFull{}},
		{"quota", fileError("/data", path(syscall.EDQUOT)), &ErrDiskFull{}},
		{"no namespaces", fileError("/data", &ErrNamespaces{Err: path(syscall.EPERM)}), &ErrNamespaces{}},
		{"cache refused", fileError("/data", &ErrNoBinaries{Err: path(syscall.EACCES)}), &ErrNoBinaries{}},
		{"initdb on a full disk", programError("/data", "initdb", exit, "could not write file: No space left on device"), &ErrDiskFull{}},
		{"postgres on a read-only disk", programError("/data", "postgres", exit, "could not open file: Read-only file system"), &ErrNotWritable{}},
		{"postgres for another reason", programError("/data", "postgres", exit, "out of memory"), &ErrProgram{}},
	}
	for _, test := range tests {
		if got, want := reflect.TypeOf(test.got), reflect.TypeOf(test.want); got != want {
			t.Errorf("%s: got %v (%v), want %v", test.name, got, test.got, want)
		}
	}
	bound := programError("/data", "postgres", exit, `could not bind IPv4 address "127.0.0.1": Address already in use`)
	if !errors.Is(bound, errPortTaken) {
		t.Errorf("port taken: got %v", bound)
	}
}
