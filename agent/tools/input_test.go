package tools_test

import (
	"strings"
	"testing"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/agent/tools"
)

// Errors describe invalid input in the words of the schema.
func TestInputTypes(t *testing.T) {
	b := newBench(t, tools.Options{})
	for _, tt := range []struct{ tool, input, want string }{
		{"sandbox_process_wait", `{"process_id": "x", "stdout_offset": "5"}`, `sandbox_process_wait: the input "stdout_offset" is a string: it must be a whole number`},
		{"sandbox_exec", `["x"]`, `sandbox_exec: the input is an array: it must be a JSON object`},
		{"sandbox_exec", `{"command": "x", "timeout_seconds": 1.5}`, `sandbox_exec: the input "timeout_seconds" is a number 1.5: it must be a whole number`},
		{"sandbox_exec", `{"command": "x", "env": []}`, `sandbox_exec: the input "env" is an array: it must be a table of strings`},
		{"sandbox_exec", `{"command": "x", "env": {"A": 1}}`, `sandbox_exec: a value in the input "env" is a number: it must be a string`},
		{"sandbox_exec", `{"command": "x", "env": {"A=B": "1"}}`, `sandbox_exec: env "A=B": names must not be empty or contain =, and no NUL bytes are allowed`},
		{"sandbox_exec", `{"command": "x", "background": "yes"}`, `sandbox_exec: the input "background" is a string: it must be true or false`},
		{"sandbox_run", `{"runtime": "bash", "code": "x", "args": ["a", 1]}`, `sandbox_run: a value in the input "args" is a number: it must be a string`},
		{"sandbox_run", `{"runtime": "bash", "code": "x", "args": "a b"}`, `sandbox_run: the input "args" is a string: it must be a list of strings`},
		{"sandbox_run", `{"runtime": "bash", "code": "x", "env": {"": "1"}}`, `sandbox_run: env "": names must not be empty or contain =, and no NUL bytes are allowed`},
		{"sandbox_run", `{"runtime": "bash", "code": "x", "files": {"./main.sh": "y"}}`, `sandbox_run: file "./main.sh" has the name of the code's file: use another name`},
		{"sandbox_fs_write", "{\"path\": \"f\", \"content\": \"\xff\"}", `sandbox_fs_write: the input is not UTF-8: send other data as base64`},
	} {
		r := b.call(tt.tool, tt.input)
		if r.wantError(atoll.ErrInvalid); r.err != nil && r.err.Error() != tt.want {
			t.Errorf("%s %s: %v, want %s", tt.tool, tt.input, r.err, tt.want)
		}
	}
	b.call("sandbox_exec", `{"command": "echo 1", "timeout_seconds": 60.0}`).wantFields("stdout", "1\n") // an integer, too
	b.call("sandbox_exec", `{"command": "echo 2", "timeout_seconds": 6e1, "env": null, "workdir": null}`).wantFields("stdout", "2\n")
}

// Models read output unchanged, and it often is code.
func TestCodeIsNotEscaped(t *testing.T) {
	b := newBench(t, tools.Options{})
	data, err := b.Call(t.Context(), b.caller, "sandbox_exec", []byte(`{"command": "echo 'a <- b && c > d'"}`), nil)
	if err != nil || !strings.Contains(string(data), `"stdout":"a <- b && c > d\n"`) {
		t.Errorf("it gives %s, %v", data, err)
	}
}
