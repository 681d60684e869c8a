package harness

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strings"
)

func binaryOf(name string) string {
	kind, _, _ := strings.Cut(name, "-")
	return kind
}

// configure chooses ports and writes every service's configuration and secrets. JSON is YAML.
func (s *System) configure() error {
	for _, dir := range []string{"config", "secrets", "log", "data"} {
		if err := os.MkdirAll(filepath.Join(s.Dir, dir), 0o700); err != nil {
			return err
		}
	}
	secrets := map[string]string{
		"principal.key": token(32), "digest.key": token(32), "admin.token": token(16), "postgres.url": s.Database.URL, "model.key": "sk-" + token(12),
	}
	for name, value := range secrets {
		if err := os.WriteFile(filepath.Join(s.Dir, "secrets", name), []byte(value+"\n"), 0o600); err != nil {
			return err
		}
	}
	for _, name := range s.order {
		for _, key := range []string{name, name + " admin"} {
			port, err := s.freePort()
			if err != nil {
				return err
			}
			s.ports[key] = port
		}
	}
	for _, name := range s.order {
		file := map[string]any{"listen": s.Address(name), "principal_key_file": "../secrets/principal.key"}
		if binaryOf(name) != "gateway" {
			file["admin_addr"] = s.Address(name + " admin")
		}
		maps.Copy(file, s.own(name))
		if s.opts.Configure != nil {
			s.opts.Configure(name, file)
		}
		raw, err := json.MarshalIndent(file, "", "  ")
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(s.Dir, "config", name+".yaml"), raw, 0o600); err != nil {
			return err
		}
	}
	return nil
}

// own are the keys of one service.
func (s *System) own(name string) map[string]any {
	cell := filepath.Join(s.Dir, "data", "cell")
	switch binaryOf(name) {
	case AgentFS:
		return map[string]any{"data_dir": filepath.Join(s.Dir, "data", "agentfs"), "routing": s.Address(Routing), "ingress": s.Address(Ingress(0)), "model": map[string]any{
			"base_url": s.ModelURL, "name": "scripted-demo-model", "api_key_file": "../secrets/model.key", "context_length": s.opts.ContextLength}}
	case SessionDB:
		return map[string]any{"cell_dir": cell}
	case Supervisor:
		return map[string]any{"cell_dir": cell, "data_dir": filepath.Join(s.Dir, "data"), "hermes_venv": s.opts.Venv, "agentfs": s.Address(AgentFS)}
	case Routing:
		return map[string]any{"postgres_url_file": "../secrets/postgres.url", "digest_key_file": "../secrets/digest.key", "agentfs": s.Address(AgentFS),
			"cells": []any{map[string]any{"id": "cell-0", "supervisor": s.Address(Supervisor), "sessiondb": s.Address(SessionDB)}}}
	case "ingress":
		return map[string]any{"postgres_url_file": "../secrets/postgres.url", "routing": s.Address(Routing), "agentfs": s.Address(AgentFS)}
	default:
		_, replica, _ := strings.Cut(name, "-")
		return map[string]any{"routing": s.Address(Routing), "ingress": s.Address("ingress-" + replica), "agentfs": s.Address(AgentFS),
			"tokens": []any{map[string]any{"token_file": "../secrets/admin.token", "subject": "harness", "roles": []string{"admin"}}}}
	}
}

func (s *System) readyURL(name string) string {
	address := s.Address(name + " admin")
	if binaryOf(name) == "gateway" {
		address = s.Address(name)
	}
	return "http://" + address + "/readyz"
}

func (s *System) secret(name string) string {
	raw, err := os.ReadFile(filepath.Join(s.Dir, "secrets", name))
	if err != nil {
		s.t.Fatalf("read a secret: %v", err)
	}
	return strings.TrimSpace(string(raw))
}

// Listen listens on a port of loopback, 0 for a free one.
func Listen(port int) (net.Listener, error) {
	var lc net.ListenConfig
	return lc.Listen(context.Background(), "tcp", fmt.Sprintf("127.0.0.1:%d", port))
}

// freePort chooses below the kernel's own range: a service that is down while it is restarted must
// not lose its port to some outgoing connection.
func (s *System) freePort() (int, error) {
	for range 200 {
		port := 10_000 + rand.IntN(20_000)
		if s.uses(port) {
			continue
		}
		lis, err := Listen(port)
		if err != nil {
			continue
		}
		lis.Close()
		return port, nil
	}
	return 0, fmt.Errorf("no free port found from 10000 to 29999")
}

func (s *System) uses(port int) bool {
	for _, p := range s.ports {
		if p == port {
			return true
		}
	}
	return false
}
