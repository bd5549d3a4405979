package atoll

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"
	"time"
)

func TestCommandValidate(t *testing.T) {
	for _, tt := range []struct {
		name string
		cmd  Command
		want string
	}{
		{"plain", Command{Args: []string{"ls", "", "ü\n"}}, ""},
		{"terminal without a command", Command{TTY: &Size{}}, ""},
		{"full", Command{Args: []string{"x"}, Env: []string{"A=b"}, Dir: "x/../y", User: "u", Timeout: 1, OutputLimit: MaxOutputLimit}, ""},
		{"nothing", Command{}, "no command"},
		{"empty", Command{Args: []string{""}}, "empty"},
		{"NUL in an argument", Command{Args: []string{"a", "\x00"}}, "NUL"},
		{"NUL in dir", Command{Args: []string{"a"}, Dir: "\x00"}, "NUL"},
		{"env", Command{Args: []string{"a"}, Env: []string{"A"}}, "KEY=value"},
		{"user", Command{Args: []string{"a"}, User: ":1"}, "user"},
		{"timeout", Command{Args: []string{"a"}, Timeout: -1}, "timeout"},
		{"output limit", Command{Args: []string{"a"}, OutputLimit: MaxOutputLimit + 1}, "output limit"},
		{"negative output limit", Command{Args: []string{"a"}, OutputLimit: -1}, "output limit"},
	} {
		err := tt.cmd.Validate()
		if tt.want == "" && err != nil {
			t.Errorf("%s: %v", tt.name, err)
		}
		if tt.want != "" && (!errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), tt.want)) {
			t.Errorf("%s: %v, want ErrInvalid that says %q", tt.name, err, tt.want)
		}
	}
}

func TestExit(t *testing.T) {
	for _, tt := range []struct {
		exit  Exit
		text  string
		state State
	}{
		{Exit{}, "exited with code 0", StateStopped},
		{Exit{Code: 3}, "exited with code 3", StateFailed},
		{Exit{Code: 137, Signal: SIGKILL}, "killed by SIGKILL", StateStopped},
		{Exit{Code: 143, Signal: SIGTERM}, "killed by SIGTERM", StateStopped},
		{Exit{Code: 139, Signal: 11}, "killed by SIGSEGV", StateFailed},
		{Exit{Code: 165, Signal: 37}, "killed by signal 37", StateFailed},
		{Exit{Code: 124, TimedOut: true}, "timed out", StateFailed},
		{Exit{Code: 137, Signal: SIGKILL, Reason: "out of memory"}, "out of memory", StateFailed},
	} {
		if got := tt.exit.String(); got != tt.text {
			t.Errorf("%+v prints %q, want %q", tt.exit, got, tt.text)
		}
		if got := tt.exit.State(); got != tt.state {
			t.Errorf("%+v makes the sandbox %s, want %s", tt.exit, got, tt.state)
		}
		if tt.exit.Success() != (tt.exit.Code == 0) {
			t.Errorf("%+v: Success() = %v", tt.exit, tt.exit.Success())
		}
		b, err := json.Marshal(tt.exit)
		var again Exit
		if err != nil || json.Unmarshal(b, &again) != nil || again != tt.exit {
			t.Errorf("%s came back as %+v, %v", b, again, err)
		}
	}
}

func TestSignals(t *testing.T) {
	for in, want := range map[string]Signal{"SIGTERM": 15, "term": 15, "Kill": 9, "15": 15, "64": 64, "WINCH": 28} {
		if got, err := ParseSignal(in); got != want || err != nil {
			t.Errorf("ParseSignal(%q) = %v, %v; want %v", in, got, err, want)
		}
	}
	for _, in := range []string{"", "0", "65", "-1", "SIGNOPE", "SIG"} {
		if got, err := ParseSignal(in); err == nil {
			t.Errorf("ParseSignal(%q) = %v, want an error", in, got)
		}
	}
	for sig := Signal(0); sig <= 64; sig++ {
		text, err := sig.MarshalText()
		var again Signal
		if err != nil || again.UnmarshalText(text) != nil || again != sig {
			t.Errorf("signal %d is %q, which is %d", int(sig), text, int(again))
		}
	}
	for in, want := range map[string]Signal{`"SIGTERM"`: SIGTERM, `"15"`: SIGTERM, `15`: SIGTERM, `0`: 0, `""`: 0} {
		var sig Signal
		if err := json.Unmarshal([]byte(in), &sig); err != nil || sig != want {
			t.Errorf("JSON %s is %v, %v; want %v", in, sig, err, want)
		}
	}
	for _, in := range []string{`65`, `-1`, `1.5`, `true`, `{}`, `"nope"`} {
		var sig Signal
		if err := json.Unmarshal([]byte(in), &sig); err == nil {
			t.Errorf("JSON %s is %v, want an error", in, sig)
		}
	}
	var sig Signal
	if err := sig.UnmarshalText([]byte("nope")); err == nil {
		t.Errorf("nope is %v, want an error", sig)
	}
}

func TestRemoveOpts(t *testing.T) {
	if got := ApplyRemoveOptions(); got.Volumes {
		t.Errorf("without options: %+v", got)
	}
	if got := ApplyRemoveOptions(RemoveVolumes()); !got.Volumes {
		t.Errorf("RemoveVolumes: %+v", got)
	}
}

// SubFiles of an FS that is not a SubFS fails with ErrUnsupported.
func TestSubFilesUnsupported(t *testing.T) {
	bare := &plainSandbox{}
	for what, f := range map[string]FS{
		"another FS":  SubFiles(struct{ FS }{noFS{"x"}}, "/work"),
		"no FS":       SubFiles(Files(bare), "/work"),
		"a layer":     SubFiles(Files(SandboxLayer{bare}), "/work"),
		"one of one":  SubFiles(SubFiles(struct{ FS }{noFS{"x"}}, "/work"), "a"),
		"one of none": SubFiles(SubFiles(Files(bare), "/work"), "a"),
	} {
		ctx := context.Background()
		_, _, read := f.Read(ctx, "f", 0)
		_, write := f.Write(ctx, "f", strings.NewReader(""), WriteOptions{})
		_, stat := f.Stat(ctx, "f")
		_, list := f.List(ctx, "f", true)
		var watch error
		for _, watch = range f.Watch(ctx, "f", true) {
		}
		for method, err := range map[string]error{
			"Read": read, "Write": write, "Stat": stat, "List": list, "Watch": watch, "Mkdir": f.Mkdir(ctx, "f", 0), "Rename": f.Rename(ctx, "f", "g"),
			"Remove": f.Remove(ctx, "f", true), "WriteTar": f.WriteTar(ctx, "f", io.Discard), "ReadTar": f.ReadTar(ctx, "f", strings.NewReader("")),
		} {
			if !errors.Is(err, ErrUnsupported) {
				t.Errorf("%s of %s: %v, want %s", method, what, err, ErrUnsupported)
			}
		}
	}
}

func TestRefusalsWithin(t *testing.T) {
	now := time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)
	all := Refusals{Time: now, List: []Refusal{{Host: "old.example", Last: now.Add(-time.Minute)}, {Host: "new.example", Last: now.Add(-time.Second)}}}
	if got := all.Within(10 * time.Second); len(got) != 1 || got[0].Host != "new.example" || len(all.List) != 2 || all.List[0].Host != "old.example" {
		t.Errorf("got %+v of %+v", got, all)
	}
}

func TestRefusalTarget(t *testing.T) {
	for want, r := range map[string]Refusal{
		"example.com: no":      {Host: "example.com", Protocol: "dns", Reason: "no"},
		"example.com:443: no":  {Host: "example.com", Address: "192.0.2.1", Port: 443, Protocol: "tcp", Reason: "no"},
		"192.0.2.1:53/udp: no": {Address: "192.0.2.1", Port: 53, Protocol: "udp", Reason: "no"},
		"[2001:db8::1]:80: no": {Address: "2001:db8::1", Port: 80, Protocol: "tcp", Reason: "no"},
	} {
		if got := r.String(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
