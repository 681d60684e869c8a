package harness

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
)

// BinVariable names the environment variable with the directory of the services' binaries.
const BinVariable = "HUMANWORK_BIN_DIR"

var services = []string{"agentfs", "gateway", "ingress", "routing", "sessiondb", "supervisor"}

// Binaries returns the directory with the services' binaries: the one BinVariable names, the one
// this program lies in, or bin/ of the repository, where they are built once.
var Binaries = sync.OnceValues(func() (string, error) {
	if dir := os.Getenv(BinVariable); dir != "" {
		return filepath.Abs(dir)
	}
	if self, err := os.Executable(); err == nil && complete(filepath.Dir(self)) {
		return filepath.Dir(self), nil
	}
	root, err := Root()
	if err != nil {
		return "", err
	}
	bin := filepath.Join(root, "bin")
	args := []string{"build", "-o", bin + "/"}
	for _, s := range services {
		args = append(args, "./services/"+s+"/cmd/"+s)
	}
	build := exec.Command("go", args...)
	build.Dir = root
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build: %w\n%s", err, out)
	}
	return bin, nil
})

func complete(dir string) bool {
	for _, s := range services {
		if info, err := os.Stat(filepath.Join(dir, s)); err != nil || !info.Mode().IsRegular() {
			return false
		}
	}
	return true
}

// Root returns the root of the repository, which holds go.work, from a directory below it.
func Root() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		_, err := os.Stat(filepath.Join(dir, "go.work"))
		if err == nil {
			return dir, nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return "", err
		}
		if filepath.Dir(dir) == dir {
			return "", errors.New("no go.work above the working directory: run inside the repository")
		}
		dir = filepath.Dir(dir)
	}
}
