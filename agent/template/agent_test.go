package template

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/seed46cd37a8/atoll"
)

func TestArgs(t *testing.T) {
	a := Agent{Command: []string{"run", "{continue}", "-x", "{prompt}", "-y"}, Continue: []string{"go", "on"}}
	for _, tt := range []struct {
		prompt    string
		continued bool
		want      []string
	}{
		{"hi", false, []string{"run", "-x", "hi", "-y"}},
		{"hi", true, []string{"run", "go", "on", "-x", "hi", "-y"}},
		{"$(id) 'a' \"b\"\nc", false, []string{"run", "-x", "$(id) 'a' \"b\"\nc", "-y"}},
		{"{continue}", true, []string{"run", "go", "on", "-x", "{continue}", "-y"}},
		{"{prompt}", false, []string{"run", "-x", "{prompt}", "-y"}},
		{"--help", false, []string{"run", "-x", " --help", "-y"}},
		{"- one\n- two", false, []string{"run", "-x", " - one\n- two", "-y"}},
	} {
		if got := a.Args(tt.prompt, tt.continued); !slices.Equal(got, tt.want) {
			t.Errorf("Args(%q, %t) = %q, want %q", tt.prompt, tt.continued, got, tt.want)
		}
	}
	if got := (&Agent{}).Args("hi", true); len(got) != 0 {
		t.Errorf("without an agent: %q", got)
	}
}

func TestCheckPrompt(t *testing.T) {
	for _, tt := range []struct {
		name   string
		prompt string
		arg    string // in the error for a prompt as an argument; "" if there is none
		stdin  string
	}{
		{"short", "hi", "", ""},
		{"empty", "", "prompt is empty", "prompt is empty"},
		{"blank", " \n", "prompt is empty", "prompt is empty"},
		{"the longest", strings.Repeat("x", MaxPrompt), "", ""},
		{"one more", strings.Repeat("x", MaxPrompt+1), "stdin: true", ""},
		{"the longest, with a space in front", strings.Repeat("-", MaxPrompt), "stdin: true", ""},
		{"a NUL", "a\x00b", "NUL", ""},
	} {
		for stdin, want := range map[bool]string{false: tt.arg, true: tt.stdin} {
			err := (&Agent{Stdin: stdin}).CheckPrompt(tt.prompt)
			if (err == nil) != (want == "") || err != nil && (!errors.Is(err, atoll.ErrInvalid) || !strings.Contains(err.Error(), want)) {
				t.Errorf("%s, stdin %t: %v, want %q", tt.name, stdin, err, want)
			}
		}
	}
}

func TestTurn(t *testing.T) {
	t.Setenv("TEST_KEY", "revealed")
	tpl := Template{Name: "t", Dir: "/srv", Agent: Agent{
		Command: []string{"run"}, Stdin: true, User: "me", Env: []string{"HOME={dir}/{user}"},
		Secrets: map[string]Secret{"B": {ref: "env:TEST_KEY"}, "A": {ref: "env:TEST_NO_KEY", optional: true}},
	}}
	cmd, err := tpl.Turn("hi", false)
	if err != nil {
		t.Fatal(err)
	}
	said, err := io.ReadAll(cmd.Stdin)
	if string(said) != "hi" || err != nil || cmd.User != "me" || cmd.Dir != "/srv" || !slices.Equal(cmd.Env, []string{"HOME=/srv/me", "B=revealed"}) {
		t.Errorf("%+v, prompt %q, %v", cmd, said, err)
	}
	if _, err := tpl.Turn("", false); !errors.Is(err, atoll.ErrInvalid) {
		t.Errorf("without a prompt: %v, want invalid", err)
	}
	tpl.Agent.Secrets["C"] = Secret{ref: "env:TEST_NO_KEY"}
	_, err = tpl.Turn("hi", false)
	if want := "template t: the agent's C: secret env:TEST_NO_KEY: secret is empty or missing on the machine that runs atoll"; !errors.Is(err, atoll.ErrUnavailable) || err.Error() != want {
		t.Errorf("without a secret: %v, want %q", err, want)
	}
	if _, err := (&Template{Name: "t"}).Turn("hi", false); !errors.Is(err, atoll.ErrUnsupported) {
		t.Errorf("without an agent: %v, want unsupported", err)
	}
}

func TestSecret(t *testing.T) {
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		if text != "" {
			if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		return "file:" + path
	}
	t.Setenv("TEST_KEY", "key")
	t.Setenv("TEST_EMPTY", "")
	for _, tt := range []struct {
		ref      string
		optional bool
		want     string
		bad      string
	}{
		{ref: "env:TEST_KEY", want: "key"},
		{ref: "env:TEST_KEY", optional: true, want: "key"},
		{ref: "env:TEST_EMPTY", bad: "empty or missing"},
		{ref: "env:TEST_EMPTY", optional: true},
		{ref: file("lines", "a\nb\r\n"), want: "a\nb"},
		{ref: file("none", ""), bad: "empty or missing"},
		{ref: file("none", ""), optional: true},
		{ref: file("blank", "\n"), bad: "empty or missing"},
		{ref: file("long", strings.Repeat("x", maxSecret+1)), optional: true, bad: "larger than 65536 bytes"},
		{ref: file("nul", "a\x00"), bad: "NUL"},
		{ref: "file:" + dir, optional: true, bad: "is a directory"},
		{ref: "file:" + dir + "/lines/x", optional: true, bad: "not a directory"},
	} {
		s, err := NewSecret(tt.ref, tt.optional)
		if err != nil {
			t.Fatal(err)
		}
		got, err := s.Reveal()
		if got != tt.want || (err == nil) != (tt.bad == "") || err != nil && (!errors.Is(err, atoll.ErrUnavailable) || !strings.Contains(err.Error(), tt.bad)) {
			t.Errorf("%s, optional %t: %q, %v, want %q, %q", tt.ref, tt.optional, got, err, tt.want, tt.bad)
		}
	}
	for _, ref := range []string{"", "sk-12345", "env:", "env:A B", "env:1", "file:", "file:key", "https://key"} {
		if s, err := NewSecret(ref, false); !errors.Is(err, atoll.ErrInvalid) || !s.IsZero() || ref != "" && strings.Contains(err.Error(), "12345") {
			t.Errorf("NewSecret(%q) = %v, %v, want invalid", ref, s, err)
		}
	}
}

// Every way to print a secret masks it.
func TestSecretIsMasked(t *testing.T) {
	s := Secret{ref: "env:TEST_KEY"}
	tpl := Template{Agent: Agent{Secrets: map[string]Secret{"K": s}}}
	var log bytes.Buffer
	slog.New(slog.NewTextHandler(&log, nil)).Info("x", "s", s)
	text, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	for _, got := range []string{s.String(), string(text), log.String(), fmt.Sprintf("%v %+v %#v %s %q %x", s, s, s, s, s, s), fmt.Sprintf("%+v %#v", tpl.Agent, tpl.Agent.Secrets)} {
		if !strings.Contains(got, masked) || strings.Contains(got, "TEST_KEY") {
			t.Errorf("printed as %q", got)
		}
	}
	if (Secret{}).String() != "" {
		t.Error("no secret prints as one")
	}
}
