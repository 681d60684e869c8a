package fscli

import (
	"bufio"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
)

// withLocal gives use a local file, or standard input for "-", and its size in bytes, -1 if only
// its end will tell.
func withLocal(cmd *cobra.Command, name string, use func(r io.Reader, size int64) error) error {
	if name == "-" {
		return use(cmd.InOrStdin(), -1)
	}
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	switch {
	case err != nil:
		return err
	case info.IsDir():
		return fmt.Errorf("%s is a directory; name a file", name)
	case !info.Mode().IsRegular():
		return use(f, -1)
	}
	p := newProgress(cmd.ErrOrStderr(), filepath.Base(name), info.Size())
	defer p.end()
	return use(p.reader(f), info.Size())
}

// saveTo makes or replaces a local file by what write writes, and returns its size. Who reads the
// file sees the old content or the new, never a part; what is no regular file, as /dev/null, is
// written to.
func saveTo(name string, perm os.FileMode, write func(io.Writer) error) (size int64, err error) {
	// The file behind a link is replaced, not the link.
	if target, err := filepath.EvalSymlinks(name); err == nil {
		name = target
	}
	info, err := os.Stat(name)
	switch {
	case err == nil && info.IsDir():
		return 0, fmt.Errorf("%s is a directory", name)
	case err == nil && !info.Mode().IsRegular():
		f, err := os.OpenFile(name, os.O_WRONLY, 0)
		if err != nil {
			return 0, err
		}
		counted := &counter{Writer: f}
		err = errors.Join(write(counted), f.Close())
		return counted.n, err
	case err == nil:
		perm = info.Mode().Perm()
	}
	tmp := filepath.Join(filepath.Dir(name), ".humanwork-"+rand.Text())
	f, err := os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, perm)
	if err != nil {
		return 0, fmt.Errorf("write %s: %w", name, err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(tmp))
		}
	}()
	w := bufio.NewWriterSize(f, 1<<20)
	counted := &counter{Writer: w}
	err = write(counted)
	if err == nil {
		err = w.Flush()
	}
	if err == nil {
		err = f.Sync() // the rename must not reach the disk before the content
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return 0, err
	}
	return counted.n, os.Rename(tmp, name)
}

type counter struct {
	io.Writer
	n int64
}

func (c *counter) Write(p []byte) (int, error) {
	n, err := c.Writer.Write(p)
	c.n += int64(n)
	return n, err
}

// confirm asks for a word that shows the person means it.
func confirm(cmd *cobra.Command, question, word string) error {
	fmt.Fprint(cmd.ErrOrStderr(), question)
	answer, err := bufio.NewReader(cmd.InOrStdin()).ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("read the answer: %w", err)
	}
	if strings.TrimSpace(answer) != word {
		return fmt.Errorf("not confirmed; type %s, or give --yes", word)
	}
	return nil
}
