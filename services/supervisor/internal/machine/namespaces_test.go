package machine

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
)

// forbid runs in a user namespace of its own, whose limits are its own too: it forbids one kind of namespace and prints what Check says.
func forbid(setting string) {
	if err := os.WriteFile("/proc/sys/"+strings.ReplaceAll(setting, ".", "/"), []byte("0"), 0); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	err := Check(context.Background())
	var ns *NamespaceError
	if !errors.Is(err, ErrNamespaces) || !errors.As(err, &ns) {
		fmt.Printf("Check = %v, want ErrNamespaces\n", err)
		os.Exit(1)
	}
	fmt.Printf("%s; %s\n", ns.Setting, ns.Remedy)
	if _, err := Start(context.Background(), Config{Organization: "o", CellDir: os.TempDir()}); !errors.Is(err, ErrNamespaces) {
		fmt.Printf("Start = %v, want ErrNamespaces\n", err)
		os.Exit(1)
	}
	os.Exit(0)
}

func TestRefusedNamespacesAreNamed(t *testing.T) {
	for setting, remedy := range map[string]string{
		"user.max_pid_namespaces": "sysctl -w user.max_pid_namespaces=10000",
		"user.max_mnt_namespaces": "sysctl -w user.max_mnt_namespaces=10000",
	} {
		t.Run(setting, func(t *testing.T) {
			cmd := exec.Command("/proc/self/exe", "forbid", setting)
			cmd.SysProcAttr = &syscall.SysProcAttr{
				Cloneflags:  syscall.CLONE_NEWUSER,
				UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}},
				GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}},
			}
			out, err := cmd.CombinedOutput()
			if want := setting + " = 0; " + remedy + "\n"; err != nil || string(out) != want {
				t.Errorf("said %q, %v; want %q", out, err, want)
			}
		})
	}
}

func TestConfigsThatAreRefused(t *testing.T) {
	f := newFixture(t)
	for name, cfg := range map[string]Config{
		"organization":      {Organization: "../o", CellDir: f.cell},
		"no cell":           {Organization: "o"},
		"missing cell":      {Organization: "o", CellDir: f.cell + "/none"},
		"foreign data":      {Organization: "o", CellDir: f.cell, DataDir: f.cell + "/sessions"},
		"data is the root":  {Organization: "o", CellDir: f.cell, DataDir: "/"},
		"missing venv":      {Organization: "o", CellDir: f.cell, HermesVenv: f.data + "/none"},
		"venv of no Python": {Organization: "o", CellDir: f.cell, HermesVenv: f.data},
	} {
		if m, err := Start(t.Context(), cfg); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v, want ErrInvalid", name, err)
			if err == nil {
				m.Close(t.Context())
			}
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Start(ctx, Config{Organization: f.org, CellDir: f.cell}); !errors.Is(err, context.Canceled) {
		t.Errorf("Start with an ended context: %v", err)
	}
	wantNone(t, f.org)
}
