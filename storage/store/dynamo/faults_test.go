package dynamo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/agent"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
	"github.com/seed46cd37a8/atoll/storage/store"
)

func wantKind(t testing.TB, what string, err error, want atoll.Kind) {
	t.Helper()
	if atoll.KindOf(err) != want {
		t.Errorf("%s: %v, want %q", what, err, want)
	}
}

func conversation(id string) *store.Conversation {
	return &store.Conversation{Conversation: agent.Conversation{ID: id, Account: "acme", Turn: &agent.Turn{ID: "turn", Server: "here"}}, Turns: 1}
}

func message(key, body string) *agent.Message {
	return &agent.Message{Key: key, Account: "acme", Conversation: "one", Role: agent.RoleUser, Body: body, Time: time.Unix(1_800_000_000, 0)}
}

func insert(t testing.TB, s *Store, id string) *store.Conversation {
	t.Helper()
	c := conversation(id)
	if err := s.InsertConversation(context.Background(), c); err != nil {
		t.Fatalf("InsertConversation: %v", err)
	}
	return c
}

// bodies returns the bodies of all messages, each as its first rune and its length.
func bodies(t testing.TB, s *Store) string {
	t.Helper()
	all, err := s.Messages(context.Background(), "acme", "one", store.Page{Limit: 100})
	if err != nil {
		t.Fatalf("Messages: %v", err)
	}
	var text []string
	for _, m := range all {
		text = append(text, fmt.Sprintf("%.1s%d", m.Body, len(m.Body)))
	}
	return strings.Join(text, " ")
}

// wantState checks the messages and their count, and that no message is about to be added.
func wantState(t testing.TB, s *Store, want string) {
	t.Helper()
	if got := bodies(t, s); got != want {
		t.Errorf("the messages are %q, want %q", got, want)
	}
	it, err := s.getItem(context.Background(), conversationsTable, "acme", "one")
	if err != nil {
		t.Fatal(err)
	}
	f := fieldsOf(it)
	if got, want := f.subFields(attrStats).numberField(attrMessages), int64(len(strings.Fields(want))); got != want {
		t.Errorf("%d messages are counted, want %d", got, want)
	}
	if pending := f.subFields(attrPending); len(pending.m) > 0 {
		t.Errorf("about to be added: %v", pending.m)
	}
}

// leftovers returns the keys of all messages and parts, including invisible ones.
func leftovers(t testing.TB, s *Store) []string {
	t.Helper()
	var all []string
	in := &dynamodb.ScanInput{TableName: aws.String(s.prefix + messagesTable), ConsistentRead: aws.Bool(true)}
	for {
		out, err := s.client.Scan(context.Background(), in)
		if err != nil {
			t.Fatal(err)
		}
		for _, it := range out.Items {
			all = append(all, fieldsOf(it).textField(attrKey))
		}
		if in.ExclusiveStartKey = out.LastEvaluatedKey; len(in.ExclusiveStartKey) == 0 {
			return all
		}
	}
}

var large = strings.Repeat("L", maxInlineTexts+partSize)

// callAllMethods calls every method and checks the results.
func callAllMethods(t *testing.T, s *Store) {
	ctx := t.Context()
	check := func(what string, err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	}
	c := conversation("one")
	check("InsertConversation", s.InsertConversation(ctx, c))
	check("AddMessage", s.AddMessage(ctx, message("a", "a")))
	check("AddMessage of a large message", s.AddMessage(ctx, message("L", large)))
	check("AddMessage again", s.AddMessage(ctx, message("a", "again")))
	check("AddMessage of a large message again", s.AddMessage(ctx, message("L", large)))
	late := message("b", "b")
	late.Time = late.Time.Add(time.Hour)
	check("AddMessage", s.AddMessage(ctx, late))
	check("AddUsage", s.AddUsage(ctx, "acme", "one", 1, agent.TokenUsage{Input: 7}))
	c.Turn = nil
	check("UpdateConversation", s.UpdateConversation(ctx, c))
	wantState(t, s, fmt.Sprint("a1 L", len(large), " b1"))
	got, err := s.FindConversation(ctx, "acme", "one")
	check("FindConversation", err)
	if got.Rev != c.Rev || got.Turn != nil || got.Stats.InputTokens != 7 || !got.Updated.Equal(late.Time) {
		t.Errorf("FindConversation: %+v", got)
	}
	if all, err := s.Conversations(ctx, "acme", store.Page{Limit: 2}); err != nil || len(all) != 1 {
		t.Errorf("Conversations: %d, %v", len(all), err)
	}
	if all, err := s.RunningTurns(ctx); err != nil || len(all) != 0 {
		t.Errorf("RunningTurns: %d, %v", len(all), err)
	}
	check("DeleteConversation", s.DeleteConversation(ctx, c))
	if left := leftovers(t, s); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
	x := &store.AgentSandbox{Sandbox: agent.Sandbox{ID: "box", Account: "acme"}}
	check("InsertSandbox", s.InsertSandbox(ctx, x))
	x.Agent = "agent"
	check("UpdateSandbox", s.UpdateSandbox(ctx, x))
	if got, err := s.FindSandbox(ctx, "acme", "box"); err != nil || got.Agent != "agent" || got.Rev != x.Rev {
		t.Errorf("FindSandbox: %+v, %v", got, err)
	}
	if all, err := s.Sandboxes(ctx, "acme", store.Page{Limit: 2}); err != nil || len(all) != 1 {
		t.Errorf("Sandboxes: %d, %v", len(all), err)
	}
	check("DeleteSandbox", s.DeleteSandbox(ctx, x))
	wantChanged := s.DeleteSandbox(ctx, x)
	wantKind(t, "DeleteSandbox again", wantChanged, atoll.ErrConflict)
}

// If any one request fails in any way, each operation is still done exactly once.
func TestFaultsAreGotOver(t *testing.T) {
	p := newProxy(t, testenv.DynamoDB(t))
	s := openReady(t, optionsFor(p.endpoint))
	p.set(nil)
	callAllMethods(t, s)
	total := len(p.operations())
	for i, tt := range []struct {
		name string
		fault
	}{
		{"busy", fault{status: 400, code: "ProvisionedThroughputExceededException"}},
		{"throttled", fault{status: 400, code: "ThrottlingException"}},
		{"internal", fault{status: 500, code: "InternalServerError"}},
		{"unavailable", fault{status: 503, code: "ServiceUnavailable"}},
		{"a reset", fault{cut: true}},
		{"a cut answer", fault{cutAnswer: true}},
		{"a lost answer", fault{lose: true}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			step := 7
			if tt.lose && !testing.Short() {
				step = 1 // an unknown outcome is the hardest case
			}
			for n := 1 + i%step; n <= total; n += step {
				p.nth(n, n, tt.fault)
				callAllMethods(t, s)
				if t.Failed() {
					t.Fatalf("with a fault at request %d, %s", n, p.operations()[n-1])
				}
			}
			p.nth(1, 3, tt.fault)
			callAllMethods(t, s)
		})
	}
}

// All reads are consistent, except for the index of turns, which does not support that.
func TestReadsAreConsistent(t *testing.T) {
	p := newProxy(t, testenv.DynamoDB(t))
	s := openReady(t, optionsFor(p.endpoint))
	p.set(func(op string, body []byte, _ int) fault {
		if (op == "GetItem" || op == "Query") && !strings.Contains(string(body), `"ConsistentRead":true`) {
			t.Errorf("%s: %s", op, body)
		}
		return fault{}
	})
	callAllMethods(t, s)
	for _, op := range []string{"GetItem", "Query"} {
		if !slices.Contains(p.operations(), op) {
			t.Errorf("there was no %s request", op)
		}
	}
}

func TestBusyForever(t *testing.T) {
	p := newProxy(t, testenv.DynamoDB(t))
	opts := optionsFor(p.endpoint)
	opts.Attempts = 3
	s := openReady(t, opts)
	for _, f := range []fault{
		{status: 400, code: "ThrottlingException"}, {status: 400, code: "ProvisionedThroughputExceededException"},
		{status: 500, code: "InternalServerError"}, {status: 503, code: ""}, {cut: true}, {lose: true},
	} {
		for what, err := range callEach(t.Context(), s, func() { p.nth(1, 1<<30, f) }) {
			wantKind(t, what, err, atoll.ErrUnavailable)
		}
		if n := len(p.operations()); n != 3 {
			t.Errorf("%+v: %d requests, want 3", f, n)
		}
	}
}

// callEach calls before and then one method, for every method.
func callEach(ctx context.Context, s *Store, before func()) map[string]error {
	errs := map[string]error{}
	x := &store.AgentSandbox{Sandbox: agent.Sandbox{ID: "box", Account: "acme"}}
	for what, try := range map[string]func() error{
		"EnsureTables":       func() error { return s.EnsureTables(ctx) },
		"InsertConversation": func() error { return s.InsertConversation(ctx, conversation("x")) },
		"UpdateConversation": func() error { return s.UpdateConversation(ctx, conversation("x")) },
		"DeleteConversation": func() error { return s.DeleteConversation(ctx, conversation("x")) },
		"FindConversation":   func() error { _, err := s.FindConversation(ctx, "acme", "x"); return err },
		"Conversations":      func() error { _, err := s.Conversations(ctx, "acme", store.Page{Limit: 1}); return err },
		"RunningTurns":       func() error { _, err := s.RunningTurns(ctx); return err },
		"AddMessage":         func() error { return s.AddMessage(ctx, message("k", "x")) },
		"Messages":           func() error { _, err := s.Messages(ctx, "acme", "one", store.Page{Limit: 1}); return err },
		"AddUsage":           func() error { return s.AddUsage(ctx, "acme", "x", 1, agent.TokenUsage{}) },
		"InsertSandbox":      func() error { return s.InsertSandbox(ctx, x) },
		"UpdateSandbox":      func() error { return s.UpdateSandbox(ctx, x) },
		"DeleteSandbox":      func() error { return s.DeleteSandbox(ctx, x) },
		"FindSandbox":        func() error { _, err := s.FindSandbox(ctx, "acme", "box"); return err },
		"Sandboxes":          func() error { _, err := s.Sandboxes(ctx, "acme", store.Page{Limit: 1}); return err },
	} {
		before()
		errs[what] = try()
	}
	return errs
}

// A call waits for a silent service until its context ends, or its connection has been silent for Options.Stall.
func TestSlow(t *testing.T) {
	p := newProxy(t, testenv.DynamoDB(t))
	s := openReady(t, optionsFor(p.endpoint))
	p.nth(1, 1<<30, fault{stall: true})
	start := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	for what, err := range callEach(ctx, s, func() {}) {
		if !errors.Is(err, context.DeadlineExceeded) || atoll.KindOf(err) != atoll.ErrTimeout {
			t.Errorf("%s with a deadline: %v", what, err)
		}
	}
	ctx, cancel = context.WithCancel(t.Context())
	cancel()
	for what, err := range callEach(ctx, s, func() {}) {
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%s with a cancelled context: %v", what, err)
		}
	}
	opts := optionsFor(p.endpoint)
	opts.Stall, opts.Attempts = testenv.Scale(500*time.Millisecond), 2
	s = open(t, opts)
	wantKind(t, "AddMessage that stalls", s.AddMessage(t.Context(), message("k", "x")), atoll.ErrUnavailable)
	p.nth(1, 1, fault{stall: true})
	opts.Attempts = 20 // a busy machine may stall by itself
	_, err := open(t, opts).FindConversation(t.Context(), "acme", "one")
	wantKind(t, "FindConversation after a stall", err, atoll.ErrNotExist)
	p.nth(1, 1<<30, fault{status: 400, code: "ThrottlingException"})
	opts.Backoff = time.Hour
	ctx, cancel = context.WithTimeout(t.Context(), 400*time.Millisecond)
	defer cancel()
	_, err = open(t, opts).FindConversation(ctx, "acme", "one")
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("FindConversation with a deadline during a backoff: %v", err)
	}
	if took := time.Since(start); took > testenv.Scale(20*time.Second) {
		t.Errorf("the calls took %v", took)
	}
}

// AddMessage counts a stored message even if its context has ended meanwhile.
func TestAddMessageIsNotBrokenOff(t *testing.T) {
	p := newProxy(t, testenv.DynamoDB(t))
	s := openReady(t, optionsFor(p.endpoint))
	insert(t, s, "one")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	put := false
	p.set(func(op string, _ []byte, _ int) fault {
		if put {
			return fault{before: cancel}
		}
		put = op == "PutItem"
		return fault{}
	})
	if err := s.AddMessage(ctx, message("k", "x")); err != nil || ctx.Err() == nil {
		t.Errorf("AddMessage: %v, %v", err, ctx.Err())
	}
	wantState(t, s, "x1")
}

// The store repeats requests for items that the service left unprocessed.
func TestUnprocessed(t *testing.T) {
	p := newProxy(t, testenv.DynamoDB(t))
	opts := optionsFor(p.endpoint)
	opts.Attempts = 4
	s := openReady(t, opts)
	fill := func() *store.Conversation {
		c := insert(t, s, "one")
		for i := range 5 {
			if err := s.AddMessage(t.Context(), message(fmt.Sprint("k", i), "x")); err != nil {
				t.Fatal(err)
			}
		}
		return c
	}
	unprocessed := func(times int) {
		p.set(func(op string, body []byte, _ int) fault {
			if op != "BatchWriteItem" || times == 0 {
				return fault{}
			}
			times--
			var in map[string]json.RawMessage
			if err := json.Unmarshal(body, &in); err != nil {
				t.Error(err)
			}
			return fault{body: fmt.Sprintf(`{"UnprocessedItems":%s}`, in["RequestItems"])}
		})
	}
	c := fill()
	unprocessed(3)
	if err := s.DeleteConversation(t.Context(), c); err != nil {
		t.Errorf("DeleteConversation: %v", err)
	}
	if left := leftovers(t, s); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
	c = fill()
	unprocessed(1 << 30)
	wantKind(t, "DeleteConversation", s.DeleteConversation(t.Context(), c), atoll.ErrUnavailable)
	p.set(nil)
	wantKind(t, "DeleteConversation again", s.DeleteConversation(t.Context(), c), atoll.ErrConflict)
	if left := leftovers(t, s); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
}

// Results that exceed one answer of DynamoDB, which is limited to 1 MB, are complete.
func TestManyPages(t *testing.T) {
	s := openReady(t, optionsFor(testenv.DynamoDB(t)))
	c := insert(t, s, "one")
	const size = 120_000
	var want []string
	for i := range 40 {
		body := strings.Repeat(string(rune('A'+i)), size)
		if err := s.AddMessage(t.Context(), message(fmt.Sprint("k", i), body)); err != nil {
			t.Fatal(err)
		}
		want = append(want, fmt.Sprintf("%.1s%d", body, size))
	}
	wantState(t, s, strings.Join(want, " "))
	some, err := s.Messages(t.Context(), "acme", "one", store.Page{After: "k35", Limit: 30})
	if err != nil || len(some) != 30 || some[0].Key != "k5" || some[29].Key != "k34" {
		t.Errorf("Messages: %d, %v", len(some), err)
	}
	if err := s.DeleteConversation(t.Context(), c); err != nil {
		t.Errorf("DeleteConversation: %v", err)
	}
	if left := leftovers(t, s); len(left) > 0 {
		t.Errorf("left: %d", len(left))
	}
}
