package agentfs

import (
	"os"
	"strings"
	"testing"

	"humanwork.internal/pkg/config"
	"humanwork.internal/pkg/serve"
)

func TestConfigReportsEveryProblem(t *testing.T) {
	var cfg Config
	err := config.Parse([]byte(`
data_dir: x
databases: {url: "ftp://x"}
soul: "a\0b"
module: {}
model: {base_url: 'ftp://x', name: m}
quota: {conversation: {bytes: -1}}
max_transfers: -1
stall_timeout: -1s
`), "/base", &cfg)
	if err == nil {
		t.Fatal("accepted")
	}
	for _, part := range []string{"module", "model.api_key_file", "model: base URL", "soul", "databases.url: is given beside data_dir",
		"routing: is required", "ingress: is required", "quota.conversation.bytes", "max_transfers", "stall_timeout"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("no %q in:\n%v", part, err)
		}
	}
	good := testConfig(t)
	if err := os.WriteFile(good.Model.APIKeyFile, []byte("${SECRET}"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := New(good, serve.Environment{}); err == nil || strings.Contains(err.Error(), "SECRET") {
		t.Errorf("New with a key Hermes would expand: got %v, want an error without the key", err)
	}
}

func TestRemoteDatabasesNeedATemplate(t *testing.T) {
	for text, problem := range map[string]string{
		"url: 'libsql://{organization}.db.example'": "",
		"url: 'https://db.example/{organization}'":  "",
		"url: 'https://db.example/all'":             "would share a database",
		"url: 'postgres://{organization}.example'":  "is not a libsql, https or http URL",
		"token_file: x": "data_dir: is required, or databases.url",
		"url: 'http://127.0.0.1:8080/dev/{organization}'": "",
	} {
		var cfg Config
		err := config.Parse([]byte("routing: r\ningress: i\nmodel: {base_url: 'http://h/v1', name: m, api_key_file: k}\ndatabases: {"+text+"}\n"), "/base", &cfg)
		if problem == "" && err != nil || problem != "" && (err == nil || !strings.Contains(err.Error(), problem)) {
			t.Errorf("%s: got %v, want %q", text, err, problem)
		}
	}
}
