//go:build unix

package hooks

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/provider/local"
)

// newSandbox returns a sandbox of host processes.
func newSandbox(t *testing.T) atoll.Sandbox {
	t.Helper()
	p, err := local.New(local.Options{Dir: filepath.Join(t.TempDir(), "local")})
	if err != nil {
		t.Fatal(err)
	}
	sb, err := p.Create(t.Context(), &atoll.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(sb.Remove(context.Background(), atoll.RemoveVolumes()), p.Close()); err != nil {
			t.Error(err)
		}
	})
	return sb
}

func TestCommand(t *testing.T) {
	sb := newSandbox(t)
	for _, tt := range []struct {
		name string
		args []string
		opts CommandOptions
		kind atoll.Kind
		text string // the error contains it
		not  string // the error doesn't contain it
	}{
		{name: "succeeds", args: []string{"true"}},
		{name: "has env and dir", args: []string{"sh", "-c", `test "$A" = b && test "$(basename "$PWD")" = there`}, opts: CommandOptions{Env: []string{"A=b"}, Dir: "there"}},
		{name: "fails", args: []string{"sh", "-c", "echo err >&2; exit 3"}, kind: atoll.ErrExecFailed, text: "err"},
		{name: "fails without a word", args: []string{"false"}, kind: atoll.ErrExecFailed, text: "run false: exited with code 1"},
		{name: "prints much", args: []string{"sh", "-c", "echo begin; seq 10000; printf '\\033[2Jend\\377'; exit 1"}, kind: atoll.ErrExecFailed, text: "10000\n[2Jend", not: "begin"},
		{name: "takes too long", args: []string{"sleep", "60"}, opts: CommandOptions{Timeout: 50 * time.Millisecond}, kind: atoll.ErrTimeout, text: "run sleep: timed out"},
		{name: "is not there", args: []string{"no-such-program"}, kind: atoll.ErrCommandNotFound},
		{name: "is nothing", kind: atoll.ErrInvalid},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if tt.opts.Dir != "" {
				if err := atoll.Files(sb).Mkdir(t.Context(), tt.opts.Dir, 0o755); err != nil {
					t.Fatal(err)
				}
			}
			err := Command(tt.args, tt.opts)(t.Context(), &HookData{Sandbox: sb})
			if atoll.KindOf(err) != tt.kind || err != nil && !strings.HasSuffix(err.Error(), tt.text) {
				t.Errorf("error %v of kind %q, want %q of kind %q", err, atoll.KindOf(err), tt.text, tt.kind)
			}
			if err != nil && (len(err.Error()) > 2*errorOutput || tt.not != "" && strings.Contains(err.Error(), tt.not)) {
				t.Errorf("the error is %d bytes: %v", len(err.Error()), err)
			}
		})
	}
	t.Run("ends with its context", func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		err := Command([]string{"sleep", "60"}, CommandOptions{})(ctx, &HookData{Sandbox: sb})
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("error %v, want the context's", err)
		}
	})
	t.Run("without a sandbox", func(t *testing.T) {
		if err := Command([]string{"true"}, CommandOptions{})(t.Context(), &HookData{}); !errors.Is(err, atoll.ErrInvalid) {
			t.Errorf("error %v, want invalid", err)
		}
	})
	t.Run("what it was made of is the caller's", func(t *testing.T) {
		args := []string{"true"}
		hook := Command(args, CommandOptions{})
		args[0] = "false"
		r := New(Options{})
		if err := r.ExecuteHook(t.Context(), OnColdStart, hook, &HookData{Sandbox: sb}); err != nil {
			t.Error(err)
		}
	})
}
