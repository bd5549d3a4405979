package hooks

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/agent"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
)

func TestMain(m *testing.M) { testenv.VerifyTestMain(m) }

var errHook = atoll.Errorf("push", "", atoll.ErrUnavailable, "no way to the bucket")

// newHookData returns the data of a hook, with everything that it points to.
func newHookData() *HookData {
	return &HookData{
		ConversationID: "talk", Account: "acme", Agent: "coder",
		SandboxInfo: &agent.Sandbox{ID: "box", Meta: agent.SandboxMeta{SyncStats: &agent.SyncStats{Version: 1}}},
		Message:     &agent.Message{Key: "m", Body: "hello", ToolCalls: []agent.ToolCall{{Name: "ls", Input: []byte("{}")}}},
		TokenUsage:  &agent.TokenUsage{Input: 1},
	}
}

// An observation is a call of Observe.
type observation struct {
	hook string
	took time.Duration
	kind atoll.Kind
}

func TestExecuteHook(t *testing.T) {
	for _, tt := range []struct {
		name string
		hook HookFunc
		kind atoll.Kind
		text string // of the error
		took time.Duration
		logs []string
	}{
		{name: "succeeds", hook: func(context.Context, *HookData) error { return nil }, logs: []string{
			`level=DEBUG msg="hook begins" hook=OnMessage conversation=talk sandbox=box`, "level=INFO msg=hook", "dur=0s"}},
		{name: "fails", hook: func(context.Context, *HookData) error { return errHook },
			kind: atoll.ErrUnavailable, text: "OnMessage talk: push: no way to the bucket", logs: []string{"level=WARN msg=hook", "kind=unavailable", "no way to the bucket"}},
		{name: "panics", hook: func(context.Context, *HookData) error { panic("oh") },
			kind: atoll.ErrInternal, text: "OnMessage talk: panic: oh", logs: []string{`level=ERROR msg="panic in a hook"`, "runner_test.go"}},
		{name: "panics with nil", hook: func(context.Context, *HookData) error { panic(nil) }, kind: atoll.ErrInternal, text: "panic called with nil"},
		{name: "ends its goroutine", hook: func(context.Context, *HookData) error { runtime.Goexit(); return nil }, kind: atoll.ErrInternal, text: "ended its goroutine"},
		{name: "takes some time", hook: func(context.Context, *HookData) error { time.Sleep(time.Second); return nil }, took: time.Second, logs: []string{"dur=1s"}},
		{name: "takes too long", hook: func(ctx context.Context, _ *HookData) error { <-ctx.Done(); return ctx.Err() },
			kind: atoll.ErrTimeout, text: "took longer than 1m0s", took: time.Minute, logs: []string{"kind=timeout"}},
		{name: "fails late", hook: func(ctx context.Context, _ *HookData) error { <-ctx.Done(); return errHook },
			kind: atoll.ErrTimeout, text: "took longer than 1m0s: push: no way to the bucket", took: time.Minute},
		{name: "succeeds late", hook: func(ctx context.Context, _ *HookData) error { <-ctx.Done(); time.Sleep(time.Second); return nil }, took: time.Minute + time.Second},
		{name: "does not look at its context", hook: func(context.Context, *HookData) error { time.Sleep(time.Hour); return nil },
			kind: atoll.ErrTimeout, text: "still running 2s after its context ended", took: time.Minute + 2*time.Second},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var log bytes.Buffer
				var told []observation
				r := New(Options{
					Timeout: time.Minute, Grace: 2 * time.Second,
					Log: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug})),
					Observe: func(hook string, took time.Duration, err error) {
						told = append(told, observation{hook, took, atoll.KindOf(err)})
					},
				})
				err := r.ExecuteHook(t.Context(), OnMessage, tt.hook, newHookData())
				if atoll.KindOf(err) != tt.kind || err != nil && !strings.Contains(err.Error(), tt.text) {
					t.Errorf("error %v of kind %q, want %q of kind %q", err, atoll.KindOf(err), tt.text, tt.kind)
				}
				if want := []observation{{OnMessage, tt.took, tt.kind}}; !reflect.DeepEqual(told, want) {
					t.Errorf("Observe got %v, want %v", told, want)
				}
				for _, want := range tt.logs {
					if !strings.Contains(log.String(), want) {
						t.Errorf("the log lacks %q:\n%s", want, log.String())
					}
				}
				if err := r.Wait(t.Context()); err != nil {
					t.Errorf("Wait: %v", err)
				}
			})
		})
	}
}

// Only changes of SandboxInfo come back from a hook, and none from an abandoned one.
func TestHooksWorkOnACopy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := New(Options{Timeout: time.Minute})
		change := func(d *HookData) {
			d.SandboxInfo.Meta.LastSync = 7
			d.SandboxInfo.Meta.SyncStats.Version = 7
			d.Message.Body, d.Message.ToolCalls[0].Name, d.Message.ToolCalls[0].Input[0] = "changed", "changed", '['
			d.TokenUsage.Input = 7
			d.ConversationID = "changed"
		}
		for _, fails := range []error{nil, errHook} {
			d, want := newHookData(), newHookData()
			want.SandboxInfo.Meta.LastSync, want.SandboxInfo.Meta.SyncStats.Version = 7, 7
			stats := d.SandboxInfo.Meta.SyncStats
			_ = r.ExecuteHook(t.Context(), OnStreamFinish, func(_ context.Context, own *HookData) error {
				if own.Hook != OnStreamFinish || own.Log == nil {
					t.Errorf("the hook is called %q, and its log is %v", own.Hook, own.Log)
				}
				change(own)
				return fails
			}, d)
			if !reflect.DeepEqual(d, want) || stats.Version != 1 {
				t.Errorf("after a hook with the error %v: %+v, want %+v", fails, d, want)
			}
		}
		d := newHookData()
		if err := r.ExecuteHook(t.Context(), OnStreamFinish, func(_ context.Context, own *HookData) error {
			time.Sleep(time.Hour)
			change(own)
			return nil
		}, d); !errors.Is(err, atoll.ErrTimeout) {
			t.Errorf("error %v, want a timeout", err)
		}
		if err := r.Wait(t.Context()); err != nil || !reflect.DeepEqual(d, newHookData()) {
			t.Errorf("Wait: %v; after a hook that was left behind: %+v, want %+v", err, d, newHookData())
		}
	})
}

// The number of abandoned hooks is bounded, and Wait waits for them.
func TestLeftBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := New(Options{Timeout: time.Second, MaxLeft: 2})
		stuck := func(context.Context, *HookData) error { time.Sleep(time.Hour); return nil }
		for range 2 {
			if err := r.ColdStart(t.Context(), Hooks{OnColdStart: stuck}, newHookData()); !errors.Is(err, atoll.ErrTimeout) {
				t.Errorf("error %v, want a timeout", err)
			}
		}
		ran := false
		run := Hooks{OnColdStart: func(context.Context, *HookData) error { ran = true; return nil }}
		err := r.ColdStart(t.Context(), run, newHookData())
		if !errors.Is(err, atoll.ErrExhausted) || !strings.Contains(err.Error(), "OnColdStart of talk, OnColdStart of talk") || ran {
			t.Errorf("error %v, ran %t; want exhausted, and not to run", err, ran)
		}
		short, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := r.Wait(short); !errors.Is(err, atoll.ErrTimeout) || !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "OnColdStart of talk") {
			t.Errorf("Wait: %v, want a timeout that names them", err)
		}
		if err := r.Wait(t.Context()); err != nil {
			t.Errorf("Wait: %v", err)
		}
		synctest.Wait()
		if err := r.ColdStart(t.Context(), run, newHookData()); err != nil || !ran {
			t.Errorf("once they have ended: error %v, ran %t", err, ran)
		}
	})
}

// Each of the four moments handles errors and vanished callers in its own way.
func TestCriticality(t *testing.T) {
	type moment struct {
		name     string
		run      func(*Runner, context.Context, HookFunc) error
		returns  bool
		detached bool
	}
	for _, m := range []moment{
		{OnColdStart, func(r *Runner, ctx context.Context, h HookFunc) error {
			return r.ColdStart(ctx, Hooks{OnColdStart: h}, newHookData())
		}, true, false},
		{OnMessage, func(r *Runner, ctx context.Context, h HookFunc) error {
			r.Message(ctx, Hooks{OnMessage: h}, newHookData())
			return nil
		}, false, true},
		{OnStreamFinish, func(r *Runner, ctx context.Context, h HookFunc) error {
			r.StreamFinish(ctx, Hooks{OnStreamFinish: h}, newHookData())
			return nil
		}, false, true},
		{OnTerminate, func(r *Runner, ctx context.Context, h HookFunc) error {
			return r.Terminate(ctx, Hooks{OnTerminate: h}, newHookData())
		}, true, true},
	} {
		t.Run(m.name, func(t *testing.T) {
			if err := m.run(New(Options{}), t.Context(), nil); err != nil {
				t.Errorf("no hook: %v", err)
			}
			var log bytes.Buffer
			r := New(Options{Log: slog.New(slog.NewTextHandler(&log, nil))})
			name := ""
			err := m.run(r, t.Context(), func(_ context.Context, d *HookData) error { name = d.Hook; return errHook })
			if name != m.name || errors.Is(err, errHook) != m.returns || !strings.Contains(log.String(), "no way to the bucket") {
				t.Errorf("hook %q, error %v, log %s; want %q, the error returned %t and logged", name, err, log.String(), m.name, m.returns)
			}
			gone, cancel := context.WithCancel(t.Context())
			cancel()
			var inside error
			err = m.run(r, gone, func(ctx context.Context, _ *HookData) error { inside = ctx.Err(); return ctx.Err() })
			if (inside == nil) != m.detached || (err == nil) != m.detached {
				t.Errorf("after the caller has gone: the hook's context says %v, error %v; want it detached %t", inside, err, m.detached)
			}
			if !m.detached && !errors.Is(err, context.Canceled) {
				t.Errorf("error %v, want the context's", err)
			}
		})
	}
}
