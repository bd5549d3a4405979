package storetest

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/agent"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
	"github.com/seed46cd37a8/atoll/storage/store"
)

// RunConversations checks implementations of store.Conversations. See Run for the meaning of open.
func RunConversations(t *testing.T, open func(t *testing.T, name string) store.Conversations) {
	for _, tt := range []struct {
		name  string
		check func(t *testing.T, open func(name string) store.Conversations)
	}{
		{"a conversation is read back unchanged", checkConversationRoundTrip},
		{"a conversation that changed since it was read is not overwritten", checkConversationChanged},
		{"of concurrent claims of a turn, one succeeds", checkTurnRaced},
		{"running turns are found", checkRunningTurns},
		{"conversations are listed by id, in pages", checkConversationPages},
		{"a message is read back unchanged", checkMessageRoundTrip},
		{"a large message is read back unchanged", checkLargeMessages},
		{"a message with an existing key changes nothing", checkMessageTwice},
		{"of concurrent additions of a message, one succeeds", checkMessageRaced},
		{"messages are in the order of their addition, whatever their times", checkMessageOrder},
		{"concurrent messages and usage are all counted", checkConcurrentMessages},
		{"messages are read in pages, newest first", checkMessagePages},
		{"messages and usage leave the rest of a conversation unchanged", checkMessagesLeaveRest},
		{"the messages of a deleted conversation are deleted", checkConversationDeleted},
		{"messages added during the deletion of a conversation are deleted", checkDeletedMeanwhile},
		{"a sandbox is read back unchanged", checkAgentSandboxes},
		{"sandboxes that are not deleted are listed by id, in pages", checkAgentSandboxPages},
		{"the records of another account are invisible", checkAccountIsolation},
		{"invalid arguments are refused", checkInvalidArguments},
		{"a closed store refuses all calls", checkConversationsClosed},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tt.check(t, func(name string) store.Conversations {
				s := open(t, name)
				t.Cleanup(func() {
					for range 2 {
						if err := s.Close(); err != nil {
							t.Errorf("Close: %v", err)
						}
					}
				})
				return s
			})
		})
	}
}

// oddText has characters that are hard to store, and oddName those of them that may occur in a query.
const (
	oddText = oddName + "\x00"
	oddName = "ü 語 🏝 \u2028 \"'`\\ <b>&amp;</b> \t\r\n\x01\x7f \ufeff\ufffd $x :y #z %s ; DROP TABLE messages; --"
)

// storedNow returns the time with the precision of stores.
func storedNow() time.Time { return time.Now().UTC().Truncate(time.Microsecond) }

// newConversation returns a conversation with a value in each field.
func newConversation(account, id string) *store.Conversation {
	at := storedNow()
	return &store.Conversation{
		Conversation: agent.Conversation{
			ID: id, Account: account, Organization: "o " + oddText, Agent: "a " + oddText, Template: "t " + oddText, Sandbox: "s " + oddText,
			Stats:   agent.Stats{MessagesExchanged: 1, InputTokens: 2, OutputTokens: 3, CacheTokens: 1 << 60},
			Turn:    &agent.Turn{ID: "i " + oddText, Server: "v " + oddText, Sandbox: "x " + oddText, Process: "p " + oddText, Raw: true, Started: at.Add(-time.Hour)},
			Created: at.Add(-time.Minute), Updated: at.Add(-time.Second),
		},
		Until: at.Add(time.Hour), Caller: "c " + oddText, Turns: 1 << 50,
	}
}

func insertConversation(t *testing.T, s store.Conversations, c *store.Conversation) *store.Conversation {
	t.Helper()
	if err := s.InsertConversation(t.Context(), c); err != nil {
		t.Fatalf("InsertConversation: %v", err)
	}
	return c
}

func findConversation(t *testing.T, s store.Conversations, account, id string) *store.Conversation {
	t.Helper()
	c, err := s.FindConversation(t.Context(), account, id)
	if err != nil {
		t.Fatalf("FindConversation: %v", err)
	}
	return c
}

// wantEqual compares a record that was read with the written one. Times must be in UTC.
func wantEqual(t *testing.T, what string, got, want any) {
	t.Helper()
	if reflect.DeepEqual(got, want) {
		return
	}
	g, _ := json.Marshal(got)
	w, _ := json.Marshal(want)
	t.Errorf("%s:\n%.2000s, want\n%.2000s", what, g, w)
}

func wantChanged(t *testing.T, what string, err error) {
	t.Helper()
	wantKind(t, what, err, atoll.ErrConflict)
	if !errors.Is(err, store.ErrChanged) {
		t.Errorf("%s: %v, want ErrChanged", what, err)
	}
}

func checkConversationRoundTrip(t *testing.T, open func(string) store.Conversations) {
	a, b := open("a"), open("a")
	_, err := a.FindConversation(t.Context(), "acme", "one")
	wantKind(t, "FindConversation of a missing one", err, atoll.ErrNotExist)
	full := insertConversation(t, a, newConversation("acme", "one"))
	if full.Rev == 0 {
		t.Error("InsertConversation has not set Rev")
	}
	wantKind(t, "InsertConversation again", b.InsertConversation(t.Context(), newConversation("acme", "one")), atoll.ErrAlreadyExists)
	wantEqual(t, "FindConversation", findConversation(t, b, "acme", "one"), full)
	bare := insertConversation(t, b, &store.Conversation{Conversation: agent.Conversation{ID: "bare", Account: "acme"}})
	wantEqual(t, "FindConversation with few fields", findConversation(t, a, "acme", "bare"), bare)

	other := newConversation("acme", "one")
	other.Organization, other.Agent, other.Template, other.Sandbox, other.Turn.Process, other.Turns = "o2", "a2", "t2", "", "", 7
	other.Created, other.Updated, other.Until = other.Created.Add(time.Hour), other.Updated.Add(time.Microsecond), other.Until.Add(time.Hour)
	other.Rev = full.Rev
	if err := b.UpdateConversation(t.Context(), other); err != nil {
		t.Fatalf("UpdateConversation: %v", err)
	}
	if other.Rev == full.Rev {
		t.Error("UpdateConversation has not raised Rev")
	}
	wantEqual(t, "FindConversation after an update", findConversation(t, a, "acme", "one"), other)
	bare.Rev = other.Rev
	*other = store.Conversation{Conversation: agent.Conversation{ID: "one", Account: "acme", Stats: other.Stats}, Rev: other.Rev}
	if err := b.UpdateConversation(t.Context(), other); err != nil {
		t.Fatalf("UpdateConversation: %v", err)
	}
	wantEqual(t, "FindConversation after an update to zero values", findConversation(t, a, "acme", "one"), other)

	precise := newConversation("acme", "precise")
	precise.Created = time.Date(2026, 1, 2, 3, 4, 5, 678_901_234, time.FixedZone("", 3600))
	insertConversation(t, a, precise)
	if got, want := findConversation(t, a, "acme", "precise").Created, time.Date(2026, 1, 2, 2, 4, 5, 678_901_000, time.UTC); got != want {
		t.Errorf("created at %v, want %v", got, want)
	}
}

func checkConversationChanged(t *testing.T, open func(string) store.Conversations) {
	a, b := open("a"), open("a")
	c := insertConversation(t, a, newConversation("acme", "one"))
	stale := findConversation(t, b, "acme", "one")
	c.Agent = "changed"
	if err := a.UpdateConversation(t.Context(), c); err != nil {
		t.Fatalf("UpdateConversation: %v", err)
	}
	rev := stale.Rev
	wantChanged(t, "UpdateConversation of an old revision", b.UpdateConversation(t.Context(), stale))
	wantChanged(t, "DeleteConversation of an old revision", b.DeleteConversation(t.Context(), stale))
	if stale.Rev != rev {
		t.Error("a failed write changed Rev")
	}
	wantEqual(t, "FindConversation", findConversation(t, b, "acme", "one"), c)
	if err := b.DeleteConversation(t.Context(), c); err != nil {
		t.Fatalf("DeleteConversation: %v", err)
	}
	wantChanged(t, "UpdateConversation of a deleted one", a.UpdateConversation(t.Context(), c))
	wantChanged(t, "DeleteConversation of a deleted one", a.DeleteConversation(t.Context(), c))
	_, err := a.FindConversation(t.Context(), "acme", "one")
	wantKind(t, "FindConversation of a deleted one", err, atoll.ErrNotExist)
	// The next conversation has as many writes as the deleted one.
	next := insertConversation(t, b, newConversation("acme", "one"))
	wantChanged(t, "UpdateConversation of a predecessor", a.UpdateConversation(t.Context(), stale))
	if err := b.UpdateConversation(t.Context(), next); err != nil {
		t.Fatalf("UpdateConversation: %v", err)
	}
	wantChanged(t, "UpdateConversation of a predecessor", a.UpdateConversation(t.Context(), c))
	wantChanged(t, "DeleteConversation of a predecessor", a.DeleteConversation(t.Context(), c))
	wantEqual(t, "FindConversation", findConversation(t, a, "acme", "one"), next)
}

// checkTurnRaced makes 50 callers claim one turn, like servers that got the same prompt.
func checkTurnRaced(t *testing.T, open func(string) store.Conversations) {
	stores := []store.Conversations{open("a"), open("a"), open("a")}
	c := newConversation("acme", "one")
	c.Turn, c.Turns = nil, 0
	insertConversation(t, stores[0], c)
	var won atomic.Pointer[string]
	var claims []func() error
	for i := range 50 {
		s, server := stores[i%len(stores)], fmt.Sprint("server", i)
		claims = append(claims, func() error {
			c, err := s.FindConversation(t.Context(), "acme", "one")
			if err == nil && c.Turn != nil {
				return store.ErrChanged // another caller was faster
			}
			if err != nil {
				return err
			}
			c.Turn, c.Turns = &agent.Turn{ID: "turn", Server: server}, c.Turns+1
			err = s.UpdateConversation(t.Context(), c)
			if err == nil {
				won.Store(&server)
			}
			return err
		})
	}
	oneWins(t, claims, store.ErrChanged)
	got := findConversation(t, stores[1], "acme", "one")
	if server := won.Load(); server == nil || got.Turn == nil || got.Turn.Server != *server || got.Turns != 1 {
		t.Errorf("the turn is %+v, with %d turns", got.Turn, got.Turns)
	}
}

func checkRunningTurns(t *testing.T, open func(string) store.Conversations) {
	s := open("a")
	wantRunning := func(when string, want ...*store.Conversation) {
		t.Helper()
		var got []*store.Conversation
		// A turn that has just begun may be missing for a while.
		for deadline := time.Now().Add(testenv.Scale(time.Minute)); ; time.Sleep(10 * time.Millisecond) {
			var err error
			if got, err = s.RunningTurns(t.Context()); err != nil {
				t.Fatalf("RunningTurns: %v", err)
			}
			if len(got) >= len(want) || time.Now().After(deadline) {
				break
			}
		}
		if len(got) != len(want) {
			t.Errorf("%s: RunningTurns has %d, want %d", when, len(got), len(want))
			return
		}
		for i := range want {
			wantEqual(t, when+": RunningTurns", got[i], want[i])
		}
	}
	wantRunning("at first")
	idle := newConversation("acme", "idle")
	idle.Turn = nil
	insertConversation(t, s, idle)
	two := insertConversation(t, s, newConversation("beta", "two"))
	one := insertConversation(t, s, newConversation("acme", "one"))
	wantRunning("with two", one, two)
	idle.Turn = &agent.Turn{ID: "x"}
	if err := s.UpdateConversation(t.Context(), idle); err != nil {
		t.Fatal(err)
	}
	wantRunning("with three", idle, one, two)
	one.Turn, one.Until = nil, time.Time{}
	if err := s.UpdateConversation(t.Context(), one); err != nil {
		t.Fatal(err)
	}
	wantRunning("when one has ended", idle, two)
	if err := s.DeleteConversation(t.Context(), two); err != nil {
		t.Fatal(err)
	}
	wantRunning("when one was deleted", idle)
}

func checkConversationPages(t *testing.T, open func(string) store.Conversations) {
	s := open("a")
	ids := []string{"7", "B", "a", "a-", "a0", "a_", "aa", "b"} // in byte order
	for i := range ids {
		insertConversation(t, s, newConversation("acme", ids[(i*5)%len(ids)]))
	}
	for limit := 1; limit <= len(ids)+1; limit++ {
		var got []string
		for after := ""; ; {
			page, err := s.Conversations(t.Context(), "acme", store.Page{After: after, Limit: limit})
			if err != nil || len(page) > limit {
				t.Fatalf("Conversations: %d of %d, %v", len(page), limit, err)
			}
			for _, c := range page {
				after = c.ID
				got = append(got, after)
			}
			if len(page) < limit {
				break
			}
		}
		if !reflect.DeepEqual(got, ids) {
			t.Errorf("in pages of %d: %q, want %q", limit, got, ids)
		}
	}
	page, err := s.Conversations(t.Context(), "acme", store.Page{After: "a1", Limit: 1}) // no conversation has that id
	if err != nil || len(page) != 1 || page[0].ID != "a_" {
		t.Errorf("Conversations after a1: %+v, %v", page, err)
		return
	}
	wantEqual(t, "Conversations", page[0], findConversation(t, s, "acme", "a_"))
}

func checkAccountIsolation(t *testing.T, open func(string) store.Conversations) {
	s := open("a")
	c, x, m := newConversation("acme", "one"), agentSandbox("acme", "box"), newMessage("acme", "one")
	insertConversation(t, s, c)
	insertSandbox(t, s, x)
	addMessage(t, s, m)
	_, find := s.FindConversation(t.Context(), "beta", "one")
	_, findSandbox := s.FindSandbox(t.Context(), "beta", "box")
	_, read := s.Messages(t.Context(), "beta", "one", store.Page{Limit: 1})
	foreign := newMessage("beta", "one")
	for what, err := range map[string]error{
		"FindConversation": find, "FindSandbox": findSandbox, "Messages": read, "AddMessage": s.AddMessage(t.Context(), foreign),
		"AddUsage": s.AddUsage(t.Context(), "beta", "one", 1, agent.TokenUsage{Input: 1}),
	} {
		wantKind(t, what+" of another account", err, atoll.ErrNotExist)
	}
	stolen, taken := *c, *x
	stolen.Account, taken.Account = "beta", "beta"
	wantChanged(t, "UpdateConversation of another account", s.UpdateConversation(t.Context(), &stolen))
	wantChanged(t, "DeleteConversation of another account", s.DeleteConversation(t.Context(), &stolen))
	wantChanged(t, "UpdateSandbox of another account", s.UpdateSandbox(t.Context(), &taken))
	wantChanged(t, "DeleteSandbox of another account", s.DeleteSandbox(t.Context(), &taken))
	all, err := s.Conversations(t.Context(), "beta", store.Page{Limit: 9})
	boxes, err2 := s.Sandboxes(t.Context(), "beta", store.Page{Limit: 9})
	if len(all) > 0 || len(boxes) > 0 || err != nil || err2 != nil {
		t.Errorf("another account has %d conversations and %d sandboxes, %v, %v", len(all), len(boxes), err, err2)
	}
	// The accounts may use the same ids and keys. An account and an id that concatenate to the same text are
	// different, too.
	insertConversation(t, s, newConversation("beta", "one"))
	insertConversation(t, s, newConversation("acm", "eone"))
	insertSandbox(t, s, agentSandbox("beta", "box"))
	foreign = newMessage("beta", "one")
	foreign.Key, foreign.Body = m.Key, "foreign"
	addMessage(t, s, foreign)
	wantMessages(t, s, "acme", "one", m)
	wantMessages(t, s, "beta", "one", foreign)
	wantMessages(t, s, "acm", "eone")
	theirs := findConversation(t, s, "beta", "one")
	if err := s.DeleteConversation(t.Context(), theirs); err != nil {
		t.Fatal(err)
	}
	wantMessages(t, s, "acme", "one", m)
}

func checkInvalidArguments(t *testing.T, open func(string) store.Conversations) {
	s := open("a")
	insertConversation(t, s, newConversation("acme", "one"))
	for what, change := range map[string]func(*store.Conversation){
		"no account":                func(c *store.Conversation) { c.Account = "" },
		"a bad account":             func(c *store.Conversation) { c.Account = "a/b" },
		"no id":                     func(c *store.Conversation) { c.ID = "" },
		"a bad id":                  func(c *store.Conversation) { c.ID = "a/b" },
		"a UUID in upper case":      func(c *store.Conversation) { c.ID = "6BA7B810-9DAD-11D1-80B4-00C04FD430C8" },
		"invalid UTF-8":             func(c *store.Conversation) { c.Agent = "\xff" },
		"invalid UTF-8 in a turn":   func(c *store.Conversation) { c.Turn.Server = "\xff" },
		"invalid UTF-8 in a caller": func(c *store.Conversation) { c.Caller = "\xff" },
		"too much text":             func(c *store.Conversation) { c.Agent = string(make([]byte, store.MaxRecord)) },
	} {
		c := newConversation("acme", "two")
		change(c)
		wantKind(t, "InsertConversation with "+what, s.InsertConversation(t.Context(), c), atoll.ErrInvalid)
		wantKind(t, "UpdateConversation with "+what, s.UpdateConversation(t.Context(), c), atoll.ErrInvalid)
	}
	for what, change := range map[string]func(*agent.Message){
		"no key":                       func(m *agent.Message) { m.Key = "" },
		"a bad key":                    func(m *agent.Message) { m.Key = "a/b" },
		"no role":                      func(m *agent.Message) { m.Role = "" },
		"no time":                      func(m *agent.Message) { m.Time = time.Time{} },
		"invalid UTF-8":                func(m *agent.Message) { m.Body = "\xff" },
		"invalid UTF-8 in a tool call": func(m *agent.Message) { m.ToolCalls[0].Output = "\xff" },
		"an input that is not JSON":    func(m *agent.Message) { m.ToolCalls[0].Input = json.RawMessage("{") },
		"too much text":                func(m *agent.Message) { m.Body = string(make([]byte, store.MaxMessage)) },
	} {
		m := newMessage("acme", "one")
		change(m)
		wantKind(t, "AddMessage with "+what, s.AddMessage(t.Context(), m), atoll.ErrInvalid)
	}
	for what, change := range map[string]func(*store.AgentSandbox){
		"no account":    func(x *store.AgentSandbox) { x.Account = "" },
		"a bad id":      func(x *store.AgentSandbox) { x.ID = "a/b" },
		"invalid UTF-8": func(x *store.AgentSandbox) { x.Meta.SyncError = "\xff" },
		"too much text": func(x *store.AgentSandbox) { x.Meta.SyncError = string(make([]byte, store.MaxRecord)) },
	} {
		x := agentSandbox("acme", "two")
		change(x)
		wantKind(t, "InsertSandbox with "+what, s.InsertSandbox(t.Context(), x), atoll.ErrInvalid)
		wantKind(t, "UpdateSandbox with "+what, s.UpdateSandbox(t.Context(), x), atoll.ErrInvalid)
	}
	for _, page := range []store.Page{{}, {Limit: -1}} {
		_, err := s.Conversations(t.Context(), "acme", page)
		_, err2 := s.Sandboxes(t.Context(), "acme", page)
		_, err3 := s.Messages(t.Context(), "acme", "one", page)
		for _, err := range []error{err, err2, err3} {
			wantKind(t, "a page without a limit", err, atoll.ErrInvalid)
		}
	}
	wantMessages(t, s, "acme", "one")
	for _, id := range []string{"", "a/b", oddName} { // ids that no record has
		for _, account := range []string{"acme", ""} {
			_, err := s.FindConversation(t.Context(), account, id)
			_, err2 := s.FindSandbox(t.Context(), account, id)
			_, err3 := s.Messages(t.Context(), account, id, store.Page{Limit: 1})
			m := newMessage(account, id)
			for _, err := range []error{err, err2, err3, s.AddMessage(t.Context(), m), s.AddUsage(t.Context(), account, id, 1, agent.TokenUsage{})} {
				wantKind(t, fmt.Sprintf("a call with the id %q", id), err, atoll.ErrNotExist)
			}
			x, c := agentSandbox(account, id), newConversation(account, id)
			wantChanged(t, "DeleteSandbox", s.DeleteSandbox(t.Context(), x))
			wantChanged(t, "DeleteConversation", s.DeleteConversation(t.Context(), c))
		}
	}
}

func checkConversationsClosed(t *testing.T, open func(string) store.Conversations) {
	s := open("a")
	c, x := insertConversation(t, s, newConversation("acme", "one")), agentSandbox("acme", "box")
	insertSandbox(t, s, x)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	errs := map[string]error{
		"UpdateConversation": s.UpdateConversation(t.Context(), c), "DeleteConversation": s.DeleteConversation(t.Context(), c),
		"InsertConversation": s.InsertConversation(t.Context(), newConversation("acme", "two")),
		"AddMessage":         s.AddMessage(t.Context(), newMessage("acme", "one")), "AddUsage": s.AddUsage(t.Context(), "acme", "one", 1, agent.TokenUsage{}),
		"InsertSandbox": s.InsertSandbox(t.Context(), agentSandbox("acme", "two")), "UpdateSandbox": s.UpdateSandbox(t.Context(), x),
		"DeleteSandbox": s.DeleteSandbox(t.Context(), x),
	}
	_, errs["FindConversation"] = s.FindConversation(t.Context(), "acme", "one")
	_, errs["Conversations"] = s.Conversations(t.Context(), "acme", store.Page{Limit: 1})
	_, errs["RunningTurns"] = s.RunningTurns(t.Context())
	_, errs["Messages"] = s.Messages(t.Context(), "acme", "one", store.Page{Limit: 1})
	_, errs["FindSandbox"] = s.FindSandbox(t.Context(), "acme", "box")
	_, errs["Sandboxes"] = s.Sandboxes(t.Context(), "acme", store.Page{Limit: 1})
	for what, err := range errs {
		wantKind(t, what, err, atoll.ErrUnavailable)
	}
}
