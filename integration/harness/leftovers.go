package harness

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Leftovers lists what of the system still exists: processes whose command line, environment or
// mounts name its directory, mounts of this namespace, sockets in its directory, ports in use.
func (s *System) Leftovers() []string {
	var left []string
	for pid, why := range processesNaming(s.Dir) {
		left = append(left, fmt.Sprintf("process %d (%s)", pid, why))
	}
	left = append(left, mountsNaming(s.Dir)...)
	left = append(left, socketsBelow(s.Dir)...)
	for name, port := range s.ports {
		if binaryOf(name) == "gateway" && strings.HasSuffix(name, "admin") {
			continue // never used
		}
		lis, err := Listen(port)
		if err != nil {
			left = append(left, fmt.Sprintf("listener of %s: %v", name, err))
			continue
		}
		lis.Close()
	}
	return left
}

// processesNaming finds every process that names marker in its command line, its environment or the
// mounts of its namespace. A process's own view names the organization's sessions, so that none
// below a supervisor escapes, whatever it did to its own name.
func processesNaming(marker string) map[int]string {
	found := map[int]string{}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return map[int]string{0: err.Error()}
	}
	own := namespaceOf("self")
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		if stat, err := os.ReadFile("/proc/" + e.Name() + "/stat"); err != nil || bytes.Contains(stat, []byte(") Z ")) {
			continue // it has ended
		}
		for _, file := range []string{"cmdline", "mountinfo"} {
			if file == "mountinfo" && namespaceOf(e.Name()) == own {
				continue // mounts of this namespace are no sign of a process
			}
			raw, err := os.ReadFile(filepath.Join("/proc", e.Name(), file))
			if err != nil || !bytes.Contains(raw, []byte(marker)) {
				continue
			}
			name, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
			found[pid] = strings.ReplaceAll(string(bytes.TrimRight(name, "\x00")), "\x00", " ") + ", by " + file
		}
	}
	return found
}

func namespaceOf(pid string) string {
	ns, err := os.Readlink("/proc/" + pid + "/ns/mnt")
	if err != nil {
		return ""
	}
	return ns
}

func mountsNaming(marker string) []string {
	raw, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return []string{err.Error()}
	}
	var left []string
	for line := range strings.Lines(string(raw)) {
		if strings.Contains(line, marker) {
			left = append(left, "mount "+strings.TrimSpace(line))
		}
	}
	return left
}

func socketsBelow(dir string) []string {
	var left []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.Type()&(fs.ModeSocket|fs.ModeNamedPipe) != 0 {
			left = append(left, "socket "+path)
		}
		return nil
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		left = append(left, err.Error())
	}
	return left
}

// Kinds of processes below a supervisor.
const (
	MachineProcess = "humanwork-machine"
	ChildProcess   = "humanwork-child-init"
	HermesProcess  = "hermes-acp"
)

// Below finds this system's processes of one kind of an organization. conversation narrows it,
// empty means any.
func (s *System) Below(kind, organization, conversation string) []int {
	var found []int
	entries, err := os.ReadDir("/proc")
	if err != nil {
		s.t.Fatalf("list processes: %v", err)
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		args := commandLine(e.Name())
		if kind == HermesProcess {
			if len(args) > 1 && filepath.Base(args[1]) == HermesProcess {
				args = commandLine(parent(e.Name())) // its init process has the names
			} else {
				continue
			}
		} else if len(args) == 0 || args[0] != kind {
			continue
		}
		if len(args) < 2 || args[1] != organization || conversation != "" && (len(args) < 3 || args[2] != conversation) {
			continue
		}
		found = append(found, pid)
	}
	return found
}

func commandLine(pid string) []string {
	raw, err := os.ReadFile("/proc/" + pid + "/cmdline")
	if err != nil || len(raw) == 0 {
		return nil
	}
	return strings.Split(strings.TrimSuffix(string(raw), "\x00"), "\x00")
}

func parent(pid string) string {
	raw, err := os.ReadFile("/proc/" + pid + "/stat")
	if err != nil {
		return ""
	}
	fields := strings.Fields(string(raw[bytes.LastIndexByte(raw, ')')+1:]))
	if len(fields) < 2 {
		return ""
	}
	return fields[1]
}
