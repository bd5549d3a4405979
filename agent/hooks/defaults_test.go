package hooks

import (
	"context"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/agent"
)

// A filesStub counts calls and returns fixed results.
type filesStub struct {
	pulls, pushes int
	stats         *agent.SyncStats
	err           error
}

func (f *filesStub) Pull(context.Context) (*agent.SyncStats, error) { f.pulls++; return f.stats, f.err }
func (f *filesStub) Push(context.Context) (*agent.SyncStats, error) {
	f.pushes++
	return f.stats, f.err
}

// A messagesStub records its messages.
type messagesStub struct {
	saved  []*agent.Message
	usage  agent.TokenUsage
	where  string
	err    error
	usages int
}

func (m *messagesStub) AddMessage(_ context.Context, msg *agent.Message) error {
	m.saved = append(m.saved, msg)
	return m.err
}

func (m *messagesStub) AddUsage(_ context.Context, account, conversation string, u agent.TokenUsage) error {
	m.usages++
	m.where = account + "/" + conversation
	m.usage.Add(u)
	return m.err
}

func TestDefaultOnColdStart(t *testing.T) {
	some := &agent.SyncStats{Version: 3, FilesDownloaded: 2}
	for _, tt := range []struct {
		name  string
		files *filesStub
		init  bool
		pulls int
		err   string
		meta  agent.SandboxMeta
	}{
		{name: "nothing to pull from", init: true},
		{name: "not to be pulled", files: &filesStub{stats: some}},
		{name: "pulled", files: &filesStub{stats: some}, init: true, pulls: 1, meta: agent.SandboxMeta{SyncStats: some}},
		{name: "fails", files: &filesStub{err: errHook}, init: true, pulls: 1, err: "no way", meta: agent.SandboxMeta{SyncError: errHook.Error()}},
		{name: "fails in part", files: &filesStub{stats: &agent.SyncStats{Failed: 2}}, init: true, pulls: 1, err: "2 files of the version",
			meta: agent.SandboxMeta{SyncError: "pull: 2 files of the version could not be written"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d := &HookData{SandboxInfo: &agent.Sandbox{}, Services: Services{InitFromS3: tt.init}}
			if tt.files != nil {
				d.Files = tt.files
			}
			err := DefaultOnColdStart(t.Context(), d)
			if (err != nil) != (tt.err != "") || err != nil && (!strings.Contains(err.Error(), tt.err) || !errors.Is(err, atoll.ErrUnavailable)) {
				t.Errorf("error %v, want %q", err, tt.err)
			}
			if tt.files != nil && tt.files.pulls != tt.pulls {
				t.Errorf("%d pulls, want %d", tt.files.pulls, tt.pulls)
			}
			checkMeta(t, d.SandboxInfo.Meta, tt.meta)
		})
	}
	d := &HookData{Services: Services{InitFromS3: true, Files: &filesStub{stats: some}}}
	if err := DefaultOnColdStart(t.Context(), d); err != nil {
		t.Errorf("without SandboxInfo: %v", err)
	}
}

// checkMeta compares the records of a sync. A successful one has a time.
func checkMeta(t *testing.T, got, want agent.SandboxMeta) {
	t.Helper()
	if want.SyncStats != nil {
		if age := time.Now().Unix() - got.LastSync; age < 0 || age > 60 {
			t.Errorf("the last sync was at %d", got.LastSync)
		}
		got.LastSync = 0
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("written down is %+v, want %+v", got, want)
	}
}

func TestDefaultOnMessage(t *testing.T) {
	m := &messagesStub{}
	d := &HookData{ConversationID: "talk", Account: "acme"}
	if err := DefaultOnMessage(t.Context(), d); err != nil {
		t.Errorf("no message: %v", err)
	}
	d.Message = &agent.Message{Body: "hello"}
	if err := DefaultOnMessage(t.Context(), d); !errors.Is(err, atoll.ErrInvalid) {
		t.Errorf("nowhere to save it: error %v, want invalid", err)
	}
	d.Messages = m
	if err := DefaultOnMessage(t.Context(), d); err != nil {
		t.Error(err)
	}
	if want := (&agent.Message{Account: "acme", Conversation: "talk", Body: "hello"}); len(m.saved) != 1 || !reflect.DeepEqual(m.saved[0], want) {
		t.Errorf("saved %+v, want %+v", m.saved, want)
	}
	m.err = errHook
	if err := DefaultOnMessage(t.Context(), d); !errors.Is(err, errHook) {
		t.Errorf("error %v, want that of Messages", err)
	}
}

func TestDefaultOnStreamFinish(t *testing.T) {
	pushed := &agent.SyncStats{Version: 4, Failed: 1}
	errUsage := errors.New("no database")
	use := &agent.TokenUsage{Input: 3, Output: 2, Cache: 1}
	for _, tt := range []struct {
		name   string
		files  *filesStub
		noPush bool
		usage  *agent.TokenUsage
		store  *messagesStub
		pushes int
		usages int
		errs   []error
		meta   agent.SandboxMeta
	}{
		{name: "nothing to do"},
		{name: "no tokens", usage: &agent.TokenUsage{}},
		{name: "both", files: &filesStub{stats: pushed}, usage: use, store: &messagesStub{}, pushes: 1, usages: 1, meta: agent.SandboxMeta{SyncStats: pushed}},
		{name: "not to be pushed", files: &filesStub{stats: pushed}, noPush: true, usage: use, store: &messagesStub{}, usages: 1},
		{name: "the push fails", files: &filesStub{err: errHook}, usage: use, store: &messagesStub{}, pushes: 1, usages: 1, errs: []error{errHook}, meta: agent.SandboxMeta{SyncError: errHook.Error()}},
		{name: "the tokens fail", files: &filesStub{stats: pushed}, usage: use, store: &messagesStub{err: errUsage}, pushes: 1, usages: 1, errs: []error{errUsage}, meta: agent.SandboxMeta{SyncStats: pushed}},
		{name: "both fail", files: &filesStub{err: errHook}, usage: use, store: &messagesStub{err: errUsage}, pushes: 1, usages: 1, errs: []error{errHook, errUsage}, meta: agent.SandboxMeta{SyncError: errHook.Error()}},
		{name: "nowhere to count", usage: use, errs: []error{atoll.ErrInvalid}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d := &HookData{ConversationID: "talk", Account: "acme", SandboxInfo: &agent.Sandbox{}, TokenUsage: tt.usage, Services: Services{NoPush: tt.noPush}}
			if tt.files != nil {
				d.Files = tt.files
			}
			if tt.store != nil {
				d.Messages = tt.store
			}
			err := DefaultOnStreamFinish(t.Context(), d)
			if (err != nil) != (tt.errs != nil) {
				t.Errorf("error %v, want %v", err, tt.errs)
			}
			for _, want := range tt.errs {
				if !errors.Is(err, want) {
					t.Errorf("error %v, want %v in it", err, want)
				}
			}
			if tt.files != nil && tt.files.pushes != tt.pushes {
				t.Errorf("%d pushes, want %d", tt.files.pushes, tt.pushes)
			}
			if tt.store != nil && (tt.store.usages != tt.usages || tt.store.usage != *use || tt.store.where != "acme/talk") {
				t.Errorf("tokens of %s are %+v, want %+v", tt.store.where, tt.store.usage, *use)
			}
			checkMeta(t, d.SandboxInfo.Meta, tt.meta)
		})
	}
}

func TestDefault(t *testing.T) {
	store, dir := &messagesStub{}, &filesStub{stats: &agent.SyncStats{}}
	d := newHookData()
	d.Services = Services{Files: dir, InitFromS3: true, Messages: store}
	r, hooks := New(Options{}), Default()
	if err := r.ColdStart(t.Context(), hooks, d); err != nil {
		t.Error(err)
	}
	r.Message(t.Context(), hooks, d)
	r.StreamFinish(t.Context(), hooks, d)
	if err := r.Terminate(t.Context(), hooks, d); err != nil {
		t.Error(err)
	}
	if dir.pulls != 1 || dir.pushes != 1 || len(store.saved) != 1 || store.usages != 1 {
		t.Errorf("%d pulls, %d pushes, %d messages, %d times tokens; want each once", dir.pulls, dir.pushes, len(store.saved), store.usages)
	}
}

func TestComposition(t *testing.T) {
	one, two := errors.New("one"), errors.New("two")
	var ran string
	ok := func(name string, err error) HookFunc {
		return func(context.Context, *HookData) error { ran += name; return err }
	}
	boom := func(context.Context, *HookData) error { ran += "!"; panic("boom") }
	for _, tt := range []struct {
		name string
		hook HookFunc
		ran  string
		errs []error
	}{
		{"all of none", All(), "", nil},
		{"all of nil", All(nil, nil), "", nil},
		{"all", All(ok("a", nil), nil, ok("b", nil)), "ab", nil},
		{"all with errors", All(ok("a", one), ok("b", nil), ok("c", two)), "abc", []error{one, two}},
		{"all with a panic", All(ok("a", nil), boom, ok("b", two)), "a!b", []error{atoll.ErrInternal, two}},
		{"then of none", Then(), "", nil},
		{"then of nil", Then(nil, nil), "", nil},
		{"then", Then(ok("a", nil), nil, ok("b", nil)), "ab", nil},
		{"then with an error", Then(ok("a", nil), ok("b", one), ok("c", two)), "ab", []error{one}},
		{"then with a panic", Then(ok("a", nil), boom, ok("b", nil)), "a!", []error{atoll.ErrInternal}},
		{"each in the other", Then(All(ok("a", nil), ok("b", one)), ok("c", nil)), "ab", []error{one}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ran = ""
			err := New(Options{}).ExecuteHook(t.Context(), OnColdStart, tt.hook, &HookData{})
			if ran != tt.ran || (err != nil) != (tt.errs != nil) {
				t.Errorf("ran %q, error %v; want %q, %v", ran, err, tt.ran, tt.errs)
			}
			for _, want := range tt.errs {
				if !errors.Is(err, want) {
					t.Errorf("error %v, want %v in it", err, want)
				}
			}
		})
	}
	t.Run("then ends with its context", func(t *testing.T) {
		ran = ""
		ctx, cancel := context.WithCancel(t.Context())
		stop := func(context.Context, *HookData) error { cancel(); return nil }
		if err := Then(stop, ok("a", nil))(ctx, &HookData{}); !errors.Is(err, context.Canceled) || ran != "" {
			t.Errorf("error %v, ran %q", err, ran)
		}
	})
}
