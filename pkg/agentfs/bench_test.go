package agentfs

import (
	"crypto/rand"
	"fmt"
	"os"
	"testing"
)

// BenchmarkPut stores small files, each durably.
func BenchmarkPut(b *testing.B) {
	for _, size := range []int{100, 4096, 16384, 100_000} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			f := create(b, onDisk(b))
			content := make([]byte, size)
			if _, err := rand.Read(content); err != nil {
				b.Fatal(err)
			}
			b.SetBytes(int64(size))
			for i := 0; b.Loop(); i++ {
				if _, _, err := f.Put(b.Context(), someone, Placement{Parent: Root, Name: fmt.Sprint(i)}, 0o644, content); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkPlainPut is the same work on a plain file system: write, sync, rename, sync of the
// directory.
func BenchmarkPlainPut(b *testing.B) {
	for _, size := range []int{100, 4096, 16384, 100_000} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			dir := b.TempDir()
			content := make([]byte, size)
			b.SetBytes(int64(size))
			for i := 0; b.Loop(); i++ {
				file, err := os.Create(dir + "/temp")
				if err != nil {
					b.Fatal(err)
				}
				if _, err := file.Write(content); err != nil {
					b.Fatal(err)
				}
				if err := file.Sync(); err != nil {
					b.Fatal(err)
				}
				file.Close()
				if err := os.Rename(dir+"/temp", fmt.Sprint(dir, "/", i)); err != nil {
					b.Fatal(err)
				}
				d, err := os.Open(dir)
				if err != nil {
					b.Fatal(err)
				}
				if err := d.Sync(); err != nil {
					b.Fatal(err)
				}
				d.Close()
			}
		})
	}
}

// BenchmarkGet looks up, opens and reads a small file.
func BenchmarkGet(b *testing.B) {
	f := create(b, onDisk(b))
	for i := range 1000 {
		if _, _, err := f.Put(b.Context(), someone, Placement{Parent: Root, Name: fmt.Sprint(i)}, 0o644, make([]byte, 4096)); err != nil {
			b.Fatal(err)
		}
	}
	p := make([]byte, 4096)
	b.Run("open", func(b *testing.B) {
		for i := 0; b.Loop(); i++ {
			a, err := f.Resolve(b.Context(), fmt.Sprint("/", i%1000))
			if err != nil {
				b.Fatal(err)
			}
			x, err := f.Open(b.Context(), someone, a.Ino, os.O_RDONLY)
			if err != nil {
				b.Fatal(err)
			}
			if _, err := x.ReadAt(p, 0); err != nil {
				b.Fatal(err)
			}
			if err := x.Close(); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("stat", func(b *testing.B) {
		for i := 0; b.Loop(); i++ {
			if _, err := f.Lookup(b.Context(), Root, fmt.Sprint(i%1000)); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// BenchmarkStream writes and reads one file of 256 MiB in parts of 1 MiB.
func BenchmarkStream(b *testing.B) {
	const size = 256 << 20
	part := make([]byte, 1<<20)
	if _, err := rand.Read(part); err != nil {
		b.Fatal(err)
	}
	f := create(b, onDisk(b))
	var ino Ino
	b.Run("up", func(b *testing.B) {
		b.SetBytes(size)
		for b.Loop() {
			x, err := f.Temp(b.Context(), someone, 0, 0o644)
			if err != nil {
				b.Fatal(err)
			}
			for at := int64(0); at < size; at += int64(len(part)) {
				if _, err := x.WriteAt(part, at); err != nil {
					b.Fatal(err)
				}
			}
			a, _, err := f.Place(b.Context(), someone, x, Placement{Parent: Root, Name: "large", Replace: true})
			if err != nil {
				b.Fatal(err)
			}
			ino = a.Ino
			if err := x.Close(); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("down", func(b *testing.B) {
		b.SetBytes(size)
		for b.Loop() {
			x, err := f.Open(b.Context(), someone, ino, os.O_RDONLY)
			if err != nil {
				b.Fatal(err)
			}
			for at := int64(0); at < size; at += int64(len(part)) {
				if _, err := x.ReadAt(part, at); err != nil {
					b.Fatal(err)
				}
			}
			if err := x.Close(); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// onDisk is where waiting for the disk counts.
func onDisk(b *testing.B) Options {
	return Options{Location: Location{Path: b.TempDir() + "/fs.db"}}
}
