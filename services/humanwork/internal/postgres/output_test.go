package postgres

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestOutputSeesReadinessAcrossWrites(t *testing.T) {
	out := newOutput(nil)
	for _, part := range []string{"LOG:  starting\nLOG:  database sys", "tem is ready to accept ", "connections"} {
		fmt.Fprint(out, part)
	}
	select {
	case <-out.ready:
		t.Error("ready before the line ended")
	default:
	}
	fmt.Fprint(out, "\n", readyLine, "\n")
	select {
	case <-out.ready:
	default:
		t.Error("not ready after the line")
	}
}

func TestOutputIsBounded(t *testing.T) {
	dir := t.TempDir()
	log, err := openLog(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer log.close()
	log.limit = 64 << 10
	out := newOutput(log)
	for n := range 40 {
		fmt.Fprintf(out, "%d %s\n", n, strings.Repeat("x", 3*lineLimit))
	}
	total := int64(0)
	for _, name := range []string{"server.log", "server.log.1"} {
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if info.Size() > log.limit {
			t.Errorf("%s has %d bytes, want at most %d", name, info.Size(), log.limit)
		}
		total += info.Size()
	}
	if total < log.limit {
		t.Errorf("the log keeps %d bytes, want at least %d", total, log.limit)
	}
	last, err := os.ReadFile(filepath.Join(dir, "server.log"))
	if err != nil || !strings.Contains(string(last), "\n39 xxx") {
		t.Errorf("the last line is not at the end of server.log (%v)", err)
	}
	if got := strings.Count(out.tail(), "\n"); got != tailLines {
		t.Errorf("tail: got %d lines, want %d", got, tailLines)
	}
}
