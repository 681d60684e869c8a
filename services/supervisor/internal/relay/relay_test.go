package relay

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"go/build"
	"hash"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
)

// The relay must be unable to parse what it carries, so the list is closed: anything new is a
// decision.
func TestImportsNothingThatParses(t *testing.T) {
	pkg, err := build.ImportDir(".", 0)
	if err != nil {
		t.Fatal(err)
	}
	allowed := []string{"errors", "io", "sync/atomic", "time"}
	for _, name := range pkg.Imports {
		if !slices.Contains(allowed, name) {
			t.Errorf("imports %s, want only %s", name, strings.Join(allowed, ", "))
		}
	}
}

// random gives size bytes with newlines, zeros and invalid UTF-8 anywhere, and their digest.
type random struct {
	src    *rand.ChaCha8
	left   int64
	digest hash.Hash
}

func newRandom(seed byte, size int64) *random {
	return &random{src: rand.NewChaCha8([32]byte{seed}), left: size, digest: sha256.New()}
}

func (r *random) Read(p []byte) (int, error) {
	if r.left == 0 {
		return 0, io.EOF
	}
	p = p[:min(int64(len(p)), r.left)]
	_, _ = r.src.Read(p)
	for i := 0; i < len(p); i += 97 {
		p[i] = '\n'
	}
	_, _ = r.digest.Write(p)
	r.left -= int64(len(p))
	return len(p), nil
}

func pipe(t *testing.T) (*os.File, *os.File) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close(); _ = w.Close() })
	return r, w
}

func TestBytesPassUnchangedBothWays(t *testing.T) {
	size := int64(1 << 30)
	if testing.Short() || raceEnabled {
		size = 64 << 20
	}
	childIn, stdin := pipe(t)
	stdout, childOut := pipe(t)
	r := New(stdin, stdout)

	// The child: it writes bytes of its own and checks the bytes it gets.
	down, up := newRandom(1, size), newRandom(2, size)
	got := sha256.New()
	child := make(chan error, 2)
	go func() {
		_, err := Pump(childOut, up, make([]byte, 12345))
		child <- errors.Join(err, childOut.Close())
	}()
	go func() {
		_, err := Pump(got, childIn, make([]byte, 54321))
		child <- err
	}()
	sent := make(chan error, 1)
	go func() {
		_, err := Pump(r, down, make([]byte, BufferSize))
		sent <- errors.Join(err, r.CloseWrite())
	}()
	back := sha256.New()
	if _, err := Pump(back, r, make([]byte, BufferSize)); err != nil {
		t.Fatal(err)
	}
	for _, c := range []chan error{sent, child, child} {
		if err := <-c; err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(got.Sum(nil), down.digest.Sum(nil)) {
		t.Error("the bytes to the child were changed")
	}
	if !bytes.Equal(back.Sum(nil), up.digest.Sum(nil)) {
		t.Error("the bytes from the child were changed")
	}
	if want := (Counts{ToChild: size, FromChild: size}); r.Counts() != want {
		t.Errorf("counts = %+v, want %+v", r.Counts(), want)
	}
}

func TestProgressFollowsBytesAndTouch(t *testing.T) {
	_, stdin := pipe(t)
	stdout, childOut := pipe(t)
	r := New(stdin, stdout)
	steps := []func() error{
		func() error { _, err := r.Write([]byte("x")); return err },
		func() error {
			if _, err := childOut.Write([]byte("y")); err != nil {
				return err
			}
			_, err := r.Read(make([]byte, 1))
			return err
		},
		func() error { r.Touch(); return nil },
	}
	for i, step := range steps {
		before := time.Now()
		if err := step(); err != nil {
			t.Fatal(err)
		}
		if r.Progress().Before(before) {
			t.Errorf("step %d left progress at %v, want after %v", i, r.Progress(), before)
		}
	}
}

func TestCloseFreesABlockedReadAndWrite(t *testing.T) {
	_, stdin := pipe(t)
	stdout, _ := pipe(t)
	r := New(stdin, stdout)
	ended := make(chan error, 2)
	go func() { _, err := r.Read(make([]byte, 1)); ended <- err }()
	go func() { _, err := r.Write(make([]byte, 1<<20)); ended <- err }()
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := <-ended; err == nil {
			t.Error("a blocked call ended without an error")
		}
	}
}

type shortWriter struct{}

func (shortWriter) Write(p []byte) (int, error) { return len(p) - 1, nil }

func TestPumpReportsAShortWrite(t *testing.T) {
	if _, err := Pump(shortWriter{}, strings.NewReader("abc"), make([]byte, 8)); !errors.Is(err, io.ErrShortWrite) {
		t.Errorf("got %v, want %v", err, io.ErrShortWrite)
	}
}

// benchmarkCopy moves messages of 4 KiB through two pipes with carry in the middle.
func benchmarkCopy(b *testing.B, carry func(dst io.WriteCloser, src io.ReadCloser)) {
	const message = 4 << 10
	inR, inW, err := os.Pipe()
	if err != nil {
		b.Fatal(err)
	}
	outR, outW, err := os.Pipe()
	if err != nil {
		b.Fatal(err)
	}
	go func() {
		carry(outW, inR)
		_ = outW.Close()
	}()
	received := make(chan int64)
	go func() {
		n, _ := Pump(io.Discard, outR, make([]byte, BufferSize))
		received <- n
	}()
	p := make([]byte, message)
	b.SetBytes(message)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := inW.Write(p); err != nil {
			b.Fatal(err)
		}
	}
	_ = inW.Close()
	if n := <-received; n != int64(b.N)*message {
		b.Fatalf("%d bytes arrived, want %d", n, int64(b.N)*message)
	}
}

func BenchmarkRelay(b *testing.B) {
	benchmarkCopy(b, func(dst io.WriteCloser, src io.ReadCloser) {
		r := New(dst, src)
		_, _ = Pump(r, r, make([]byte, BufferSize))
	})
}

func BenchmarkPlainCopy(b *testing.B) {
	type writer struct{ io.Writer }
	type reader struct{ io.Reader }
	benchmarkCopy(b, func(dst io.WriteCloser, src io.ReadCloser) {
		_, _ = io.CopyBuffer(writer{dst}, reader{src}, make([]byte, BufferSize))
	})
}
