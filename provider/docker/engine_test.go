package docker

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// engineEnv are the environment variables that select an engine.
var engineEnv = []string{"DOCKER_HOST", "DOCKER_CONTEXT", "DOCKER_CONFIG", "DOCKER_CERT_PATH", "DOCKER_TLS_VERIFY", "DOCKER_API_VERSION"}

// Options and environment select the expected engine, or the error names the mistake.
func TestNewClient(t *testing.T) {
	const standard = "unix:///var/run/docker.sock"
	for _, tt := range []struct {
		name  string
		host  string
		env   map[string]string
		files map[string]string // in DOCKER_CONFIG; "context NAME" stands for the file of a context
		want  string            // the expected address
		err   string
	}{
		{name: "no setting", want: standard},
		{name: "an option", host: "tcp://192.0.2.1:2375", want: "tcp://192.0.2.1:2375"},
		{name: "an option has priority over the environment", host: "unix:///a", env: map[string]string{"DOCKER_HOST": "unix:///b"}, want: "unix:///a"},
		{name: "the environment", env: map[string]string{"DOCKER_HOST": "unix:///b"}, want: "unix:///b"},
		{name: "the environment has priority over a context", env: map[string]string{"DOCKER_HOST": "unix:///b", "DOCKER_CONTEXT": "none"}, want: "unix:///b"},
		{name: "a socket needs no certificates", host: "unix:///a", env: map[string]string{"DOCKER_CERT_PATH": "/none", "DOCKER_TLS_VERIFY": "1"}, want: "unix:///a"},
		{name: "no scheme", host: "192.0.2.1:2375", err: `address "192.0.2.1:2375": write it like unix:///var/run/docker.sock`},
		{name: "ssh", env: map[string]string{"DOCKER_HOST": "ssh://me@host"}, err: "DOCKER_HOST: address \"ssh://me@host\": ssh is not supported: forward"},
		{name: "some other scheme", host: "fd://", err: "use unix, tcp or npipe"},
		{name: "no certificates", host: "tcp://192.0.2.1:2376", env: map[string]string{"DOCKER_CERT_PATH": "/none"}, err: "DOCKER_CERT_PATH=/none"},
		{
			name: "the current context", files: map[string]string{"config.json": `{"currentContext":"far"}`, "context far": `{"Endpoints":{"docker":{"Host":"tcp://192.0.2.2:2375"}}}`},
			want: "tcp://192.0.2.2:2375",
		},
		{
			name: "a context of the environment", env: map[string]string{"DOCKER_CONTEXT": "near"},
			files: map[string]string{"config.json": `{"currentContext":"far"}`, "context near": `{"Endpoints":{"docker":{"Host":"unix:///near"}}}`},
			want:  "unix:///near",
		},
		{name: "the default context", files: map[string]string{"config.json": `{"currentContext":"default"}`}, want: standard},
		{name: "a configuration without context", files: map[string]string{"config.json": `{}`}, want: standard},
		{name: "a missing context", env: map[string]string{"DOCKER_CONTEXT": "gone"}, err: `docker context "gone": not found: see docker context ls`},
		{name: "a damaged configuration", files: map[string]string{"config.json": `{"curr`}, err: "config.json: unexpected end of JSON input"},
		{name: "a damaged context", env: map[string]string{"DOCKER_CONTEXT": "bad"}, files: map[string]string{"context bad": `[`}, err: `docker context "bad": unexpected end`},
		{name: "a context of something else", env: map[string]string{"DOCKER_CONTEXT": "k8s"}, files: map[string]string{"context k8s": `{"Endpoints":{"kubernetes":{}}}`}, err: "it has no docker endpoint"},
		{
			name: "a context over ssh", env: map[string]string{"DOCKER_CONTEXT": "s"},
			files: map[string]string{"context s": `{"Endpoints":{"docker":{"Host":"ssh://me@host"}}}`}, err: `docker context "s": address "ssh://me@host": ssh is not supported`,
		},
		{
			name: "a context without verification", env: map[string]string{"DOCKER_CONTEXT": "t"},
			files: map[string]string{"context t": `{"Endpoints":{"docker":{"Host":"tcp://h:1","SkipTLSVerify":true}}}`}, err: "not supported: give the context the engine's ca.pem",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			config := t.TempDir()
			for _, name := range engineEnv {
				t.Setenv(name, "")
			}
			t.Setenv("DOCKER_CONFIG", config)
			for name, value := range tt.env {
				t.Setenv(name, value)
			}
			for name, text := range tt.files {
				if context, ok := strings.CutPrefix(name, "context "); ok {
					name = filepath.Join("contexts", "meta", contextKey(context), "meta.json")
				}
				writeFile(t, filepath.Join(config, name), text)
			}
			engine, err := newClient(Options{Host: tt.host})
			if err != nil || tt.err != "" {
				if err == nil || tt.err == "" || !strings.Contains(err.Error(), tt.err) {
					t.Fatalf("error %v, want %q in it", err, tt.err)
				}
				return
			}
			defer engine.Close()
			if got := engine.DaemonHost(); got != tt.want {
				t.Errorf("the engine is at %q, want %q", got, tt.want)
			}
		})
	}
}

// contextKey returns the directory name of a docker context.
func contextKey(name string) string {
	sum := sha256.Sum256([]byte(name))
	return hex.EncodeToString(sum[:])
}

func writeFile(t *testing.T, name, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}
