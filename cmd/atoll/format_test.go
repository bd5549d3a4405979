package main

import (
	"strings"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
)

func TestFormat(t *testing.T) {
	in := inspection{Status: atoll.Status{ID: "0703f0", State: atoll.StateRunning, Spec: atoll.Spec{Name: "web", Labels: map[string]string{"job": "7"}}}}
	tests := []struct{ format, want string }{
		{`{{.ID}}\t{{.Name}}`, "0703f0\tweb\n"},
		{`{{.State}} {{.Spec.Labels.job}} {{upper .Name}}`, "running 7 WEB\n"},
		{`{{json .Spec.Labels}}`, `{"job":"7"}` + "\n"},
		{"{{.Name}}\x1b[2J", `web\x1b[2J` + "\n"},
	}
	for _, tt := range tests {
		var f formatValue
		var b strings.Builder
		if err := f.Set(tt.format); err != nil {
			t.Errorf("Set(%q): %v", tt.format, err)
			continue
		}
		if err := f.printView(&b, in); err != nil || b.String() != tt.want {
			t.Errorf("%q: got %q, %v, want %q", tt.format, b.String(), err, tt.want)
		}
	}
}

func TestFormatRefuses(t *testing.T) {
	tests := []struct{ format, want string }{
		{"{{.x", "unclosed action"},
		{"{{nope .}}", `"{{nope .}}": function "nope" not defined`},
		{"table {{.ID}}", "leave out table"},
		{"{{.Names}}", "a sandbox has no field Names: --format json shows all"},
		{"{{.Spec.Names}}", "atoll.Spec has no field Names"},
		{"{{index .Ports 0}}", `"{{index .Ports 0}}": <index .Ports 0>: error calling index`},
	}
	for _, tt := range tests {
		var f formatValue
		err := f.Set(tt.format)
		if err == nil {
			err = f.printView(&strings.Builder{}, inspection{})
		}
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%q: %v, want an error with %q", tt.format, err, tt.want)
		}
	}
}

func TestSandboxTableOptionalColumns(t *testing.T) {
	now := time.Now()
	st := atoll.Status{ID: "0703f0", Spec: atoll.Spec{Project: atoll.DefaultProject}, Created: now}
	got := strings.Join(sandboxTable([]atoll.Status{st}, now)[0], " ")
	if want := "ID NAME PROVIDER STATE IMAGE CREATED COMMAND"; got != want {
		t.Errorf("header %q, want %q", got, want)
	}
	st.Expires = now.Add(90 * time.Minute)
	st.Ports = []atoll.PublishedPort{{Port: 80, Address: "127.0.0.1:8080"}}
	rows := sandboxTable([]atoll.Status{st, {Spec: st.Spec, Created: now, Expires: now}, {Spec: st.Spec, Created: now}}, now)
	for i, want := range []string{"CREATED EXPIRES PORTS COMMAND", "now in 90m 127.0.0.1:8080->80 -", "now now - -", "now - - -"} {
		if got := strings.Join(rows[i], " "); !strings.HasSuffix(got, want) {
			t.Errorf("row %q, want it to end with %q", got, want)
		}
	}
}

func TestDrawFrame(t *testing.T) {
	rows := [][]string{{"ID", "NAME"}, {"1", "a\x1b[2J"}, {"2", strings.Repeat("x", 40)}, {"3", "c"}}
	tests := []struct {
		height, lines, columns int
		want                   string
	}{
		{0, 10, 30, "\rID   NAME\x1b[K\n\r1    a\\x1b[2J\x1b[K\n\r2    " + strings.Repeat("x", 24) + "…\x1b[K\n\r3    c\x1b[K\n\x1b[J"},
		{4, 3, 30, "\x1b[4A\rID   NAME\x1b[K\n\r1    a\\x1b[2J\x1b[K\n\x1b[J"},
	}
	for _, tt := range tests {
		if got := drawFrame(rows, tt.height, tt.lines, tt.columns); got != tt.want {
			t.Errorf("drawFrame(%d, %d, %d) = %q, want %q", tt.height, tt.lines, tt.columns, got, tt.want)
		}
	}
}
