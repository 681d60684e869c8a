package machine

import (
	"io"
	"os/exec"
	"testing"
)

// BenchmarkSpawn starts a child, reads its first byte and sees its end; BenchmarkExec does the same with a plain process.
func BenchmarkSpawn(b *testing.B) {
	cell := b.TempDir()
	m, err := Start(b.Context(), Config{Organization: marker(), CellDir: cell})
	if err != nil {
		b.Fatal(err)
	}
	defer m.Close(b.Context())
	for b.Loop() {
		c, err := m.Spawn(b.Context(), ChildSpec{Conversation: "c", Command: []string{"/bin/echo", "x"}})
		if err != nil {
			b.Fatal(err)
		}
		if _, err := io.ReadAll(c.Stdout()); err != nil {
			b.Fatal(err)
		}
		<-c.Done()
		c.Stdin().Close()
		c.Stdout().Close()
		c.Stderr().Close()
	}
}

func BenchmarkExec(b *testing.B) {
	for b.Loop() {
		if err := exec.Command("/bin/echo", "x").Run(); err != nil {
			b.Fatal(err)
		}
	}
}
