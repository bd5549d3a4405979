package api_test

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/provider/mock"
	"github.com/seed46cd37a8/atoll/server/api"
)

func TestCode(t *testing.T) {
	p, err := mock.New(mock.Options{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	sb, err := p.Create(t.Context(), &atoll.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	h, err := api.NewHandler(p, api.Options{})
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(h)
	defer func() { server.Close(); h.Close() }()

	const most = atoll.MaxCode
	wide := "x" + strings.Repeat("ü", 600<<10) // 1 MiB of it ends within a character
	tests := []struct {
		name, language, code string
		status               int
		want                 string // part of the error
		exit                 int
		stdout, stderr       string
		truncated            bool
	}{
		{"a program", "sh", "echo hello; exit 3", 200, "", 3, "hello\n", "", false},
		{"a large one", "SH", "echo hello; : " + strings.Repeat("\n", most-len("echo hello; : ; exit 4")) + "; exit 4", 200, "", 4, "hello\n", "", false},
		{"one that is too large", "sh", strings.Repeat("x", most+1), 400, "code of 10485761 bytes exceeds the limit of 10485760 bytes", 0, "", "", false},
		{"a NUL byte", "sh", "echo \x00", 400, "the code contains a NUL byte", 0, "", "", false},
		{"long output", "sh", "echo " + wide, 200, "", 0, wide[:1<<20-1], "", true},
		{"a language that is none", "COBOL", "STOP RUN.", 200, "", -1, "", "unsupported language: COBOL", false},
		{"a program that is not there", "python", "pass", 200, "", 127, "", "\"python3\": no such command", false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			body, err := json.Marshal(atoll.Code{Language: tt.language, Code: tt.code})
			if err != nil {
				t.Fatal(err)
			}
			resp, err := http.Post(server.URL+"/v1/sandboxes/"+sb.ID()+"/code", "application/json", strings.NewReader(string(body)))
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			text, err := io.ReadAll(resp.Body)
			if err != nil || resp.StatusCode != tt.status || !strings.Contains(string(text), tt.want) {
				t.Fatalf("status %d, %.200s, %v; want %d and %q", resp.StatusCode, text, err, tt.status, tt.want)
			}
			if tt.status != http.StatusOK {
				return
			}
			var got struct {
				atoll.Exit
				Stdout, Stderr string
				Encoding       string `json:"stdout_encoding"`
				Truncated      bool   `json:"stdout_truncated"`
			}
			if err := json.Unmarshal(text, &got); err != nil {
				t.Fatal(err)
			}
			if got.Code != tt.exit || got.Stdout != tt.stdout || got.Stderr != tt.stderr || got.Truncated != tt.truncated || got.Encoding != "utf-8" {
				t.Errorf("code %d, stdout %.20q of %d bytes (%s, %v), stderr %.20q", got.Code, got.Stdout, len(got.Stdout), got.Encoding, got.Truncated, got.Stderr)
			}
		})
	}
}
