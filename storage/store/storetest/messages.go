package storetest

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/agent"
	"github.com/seed46cd37a8/atoll/storage/store"
)

// newMessage returns a message with a value in each field.
func newMessage(account, conversation string) *agent.Message {
	return &agent.Message{
		Key: atoll.NewID(), Conversation: conversation, Account: account, Turn: "t " + oddText, Role: agent.RoleAssistant, Body: "b " + oddText, Time: storedNow(),
		Tokens: agent.TokenUsage{Input: 1, Output: 2, Cache: 1 << 60},
		ToolCalls: []agent.ToolCall{
			{
				ID: "i " + oddText, Type: "function", Name: "n " + oddText, Input: json.RawMessage(`{ "b" : 1.0, "a": "<\u00fc>", "a": 12345678901234567890 }`),
				Output: "o " + oddText, Status: agent.ToolFailed, Error: "e " + oddText,
			},
			{},
			{ID: "2", Input: json.RawMessage(`null`)},
		},
	}
}

// textMessage returns a user's message with a text only.
func textMessage(body string) *agent.Message {
	m := newMessage("acme", "one")
	m.Role, m.Body, m.ToolCalls, m.Tokens, m.Turn = agent.RoleUser, body, nil, agent.TokenUsage{}, ""
	return m
}

func addMessage(t *testing.T, s store.Conversations, m *agent.Message) *agent.Message {
	t.Helper()
	if err := s.AddMessage(t.Context(), m); err != nil {
		t.Fatalf("AddMessage: %v", err)
	}
	return m
}

func readMessages(t *testing.T, s store.Conversations, account, conversation, after string, limit int) []*agent.Message {
	t.Helper()
	all, err := s.Messages(t.Context(), account, conversation, store.Page{After: after, Limit: limit})
	if err != nil {
		t.Fatalf("Messages: %v", err)
	}
	if len(all) > limit {
		t.Fatalf("Messages gives %d, with a limit of %d", len(all), limit)
	}
	return all
}

// wantMessages checks all messages of a conversation.
func wantMessages(t *testing.T, s store.Conversations, account, conversation string, want ...*agent.Message) {
	t.Helper()
	got := readMessages(t, s, account, conversation, "", len(want)+1)
	if len(got) != len(want) {
		t.Errorf("%s/%s has %d messages, want %d", account, conversation, len(got), len(want))
		return
	}
	for i := range want {
		wantEqual(t, "a message", got[i], want[i])
	}
}

// wantCount checks the number of messages that a conversation has counted, without the one that newConversation
// starts with.
func wantCount(t *testing.T, s store.Conversations, want int64) {
	t.Helper()
	if got := findConversation(t, s, "acme", "one").Stats.MessagesExchanged - 1; got != want {
		t.Errorf("%d messages are counted, want %d", got, want)
	}
}

func checkMessageRoundTrip(t *testing.T, open func(string) store.Conversations) {
	a, b := open("a"), open("a")
	wantKind(t, "AddMessage to a missing conversation", a.AddMessage(t.Context(), newMessage("acme", "one")), atoll.ErrNotExist)
	_, err := a.Messages(t.Context(), "acme", "one", store.Page{Limit: 1})
	wantKind(t, "Messages of a missing conversation", err, atoll.ErrNotExist)
	insertConversation(t, a, newConversation("acme", "one"))
	wantMessages(t, a, "acme", "one")
	given := newMessage("acme", "one")
	full := *given
	addMessage(t, a, &full)
	wantEqual(t, "the argument of AddMessage", &full, given)
	bare := addMessage(t, b, &agent.Message{Key: "bare", Account: "acme", Conversation: "one", Role: agent.RoleUser, Time: storedNow()})
	tool := textMessage("")
	tool.Role = agent.RoleTool
	addMessage(t, a, tool)
	wantMessages(t, b, "acme", "one", &full, bare, tool)
	wantCount(t, b, 3)

	precise := textMessage("precise")
	precise.Time = time.Date(2126, 1, 2, 3, 4, 5, 678_901_234, time.FixedZone("", 3600))
	addMessage(t, a, precise)
	want := time.Date(2126, 1, 2, 2, 4, 5, 678_901_000, time.UTC)
	if got := readMessages(t, b, "acme", "one", "", 1)[0].Time; got != want || precise.Time != want {
		t.Errorf("the stored time is %v, the one of the argument %v; want %v", got, precise.Time, want)
	}
}

// checkLargeMessages stores messages that exceed what some services can store in one record.
func checkLargeMessages(t *testing.T, open func(string) store.Conversations) {
	s := open("a")
	insertConversation(t, s, newConversation("acme", "one"))
	var want []*agent.Message
	for _, size := range []int{100_000, 131_000, 200_000, 300_000, 399_000, 410_000, 1 << 20, 5_000_001} {
		m := textMessage(strings.Repeat("ü", size/2)) // other encodings may need more bytes
		m.ToolCalls = newMessage("", "").ToolCalls
		want = append(want, addMessage(t, s, m))
	}
	calls := textMessage("calls")
	for i := range 1000 {
		calls.ToolCalls = append(calls.ToolCalls, agent.ToolCall{
			ID: fmt.Sprint(i), Type: "function", Name: "write", Input: json.RawMessage(`{"text": "` + strings.Repeat("\\n", 500) + `"}`), Output: strings.Repeat("\n", 500),
		})
	}
	want = append(want, addMessage(t, s, calls), addMessage(t, s, textMessage("small")))
	wantMessages(t, s, "acme", "one", want...)
	wantCount(t, s, int64(len(want)))
	got := readMessages(t, s, "acme", "one", want[7].Key, 1)
	wantEqual(t, "the message before", got[0], want[6])
	again := *want[6]
	again.Body = "another"
	addMessage(t, s, &again)
	again = *want[9]
	again.Body = strings.Repeat("x", 1<<20)
	addMessage(t, s, &again)
	wantMessages(t, s, "acme", "one", want...)
	wantCount(t, s, int64(len(want)))
	if err := s.DeleteConversation(t.Context(), findConversation(t, s, "acme", "one")); err != nil {
		t.Errorf("DeleteConversation: %v", err)
	}
}

func checkMessageTwice(t *testing.T, open func(string) store.Conversations) {
	a, b := open("a"), open("a")
	insertConversation(t, a, newConversation("acme", "one"))
	m := addMessage(t, a, textMessage("first"))
	n := addMessage(t, a, textMessage("second"))
	before := findConversation(t, a, "acme", "one")
	again := *m
	again.Body, again.Role, again.Time = "changed", agent.RoleTool, m.Time.Add(time.Hour)
	addMessage(t, b, &again)
	if again.Time != m.Time {
		t.Errorf("AddMessage set the time to %v, want %v", again.Time, m.Time)
	}
	wantMessages(t, b, "acme", "one", m, n)
	wantEqual(t, "the conversation", findConversation(t, b, "acme", "one"), before)
	third := textMessage("third")
	given := third.Time
	addMessage(t, b, third)
	if third.Time != given {
		t.Errorf("the next message has time %v, want %v", third.Time, given)
	}
	wantMessages(t, b, "acme", "one", m, n, third)
}

func checkMessageRaced(t *testing.T, open func(string) store.Conversations) {
	stores := []store.Conversations{open("a"), open("a"), open("a")}
	insertConversation(t, stores[0], newConversation("acme", "one"))
	for _, size := range []int{10, 300_000} {
		before := findConversation(t, stores[0], "acme", "one").Stats.MessagesExchanged - 1
		same := textMessage(strings.Repeat("x", size))
		times := make([]time.Time, 20)
		var all sync.WaitGroup
		for i := range times {
			m, s := *same, stores[i%len(stores)]
			m.Time = m.Time.Add(time.Duration(i%3) * time.Millisecond)
			all.Go(func() {
				if err := s.AddMessage(t.Context(), &m); err != nil {
					t.Errorf("AddMessage: %v", err)
				}
				times[i] = m.Time
			})
		}
		all.Wait()
		wantCount(t, stores[1], before+1)
		got := readMessages(t, stores[0], "acme", "one", "", 2)
		if len(got) != int(before)+1 {
			t.Fatalf("there are %d messages, want %d", len(got), before+1)
		}
		last := got[len(got)-1]
		same.Time = last.Time
		wantEqual(t, "the message", last, same)
		for _, at := range times {
			if at != last.Time {
				t.Errorf("AddMessage set the time to %v, the stored one is %v", at, last.Time)
			}
		}
	}
}

func checkMessageOrder(t *testing.T, open func(string) store.Conversations) {
	s := open("a")
	insertConversation(t, s, newConversation("acme", "one"))
	at := storedNow()
	var want []*agent.Message
	for i, offset := range []time.Duration{0, 0, 0, -time.Hour, 1, 999, time.Microsecond, time.Millisecond, 0, time.Second, -1} {
		m := textMessage(fmt.Sprint(i))
		m.Time = at.Add(offset)
		want = append(want, addMessage(t, s, m))
	}
	wantMessages(t, s, "acme", "one", want...)
	for i := 1; i < len(want); i++ {
		if !want[i].Time.After(want[i-1].Time) {
			t.Errorf("%v comes after %v", want[i].Time, want[i-1].Time)
		}
	}
	// The second message is a microsecond after the first, and so on; later times remain as they are.
	for i, offset := range map[int]time.Duration{
		0: 0, 1: time.Microsecond, 2: 2 * time.Microsecond, 3: 3 * time.Microsecond, 7: time.Millisecond,
		8: time.Millisecond + time.Microsecond, 9: time.Second, 10: time.Second + time.Microsecond,
	} {
		if got, want := want[i].Time, at.Add(offset); got != want {
			t.Errorf("message %d has time %v, want %v", i, got, want)
		}
	}
	if got := findConversation(t, s, "acme", "one").Updated; got != want[len(want)-1].Time {
		t.Errorf("the conversation was updated at %v, want %v", got, want[len(want)-1].Time)
	}
}

func checkConcurrentMessages(t *testing.T, open func(string) store.Conversations) {
	stores := []store.Conversations{open("a"), open("a"), open("a")}
	c := insertConversation(t, stores[0], newConversation("acme", "one"))
	const writers, each = 8, 6
	at := storedNow()
	var all sync.WaitGroup
	for i := range writers {
		s := stores[i%len(stores)]
		all.Go(func() {
			for j := range each {
				m := textMessage(fmt.Sprint(i, " ", j))
				m.Time = at
				if err := s.AddMessage(t.Context(), m); err != nil {
					t.Errorf("AddMessage: %v", err)
				}
				if err := s.AddUsage(t.Context(), "acme", "one", 1, agent.TokenUsage{Input: 1, Output: 10, Cache: 100}); err != nil {
					t.Errorf("AddUsage: %v", err)
				}
			}
		})
	}
	all.Wait()
	got := readMessages(t, stores[0], "acme", "one", "", writers*each+1)
	if len(got) != writers*each {
		t.Fatalf("there are %d messages, want %d", len(got), writers*each)
	}
	next := make([]int, writers)
	for i, m := range got {
		if i > 0 && !m.Time.After(got[i-1].Time) {
			t.Errorf("%v comes after %v", m.Time, got[i-1].Time)
		}
		var writer, n int
		if _, err := fmt.Sscan(m.Body, &writer, &n); err != nil || n != next[writer] {
			t.Errorf("message %q instead of message %d of the writer, %v", m.Body, next[writer], err)
		}
		next[writer]++
	}
	want := c.Stats
	want.MessagesExchanged += writers * each
	want.InputTokens++ // all calls counted the same turn
	want.OutputTokens += 10
	want.CacheTokens += 100
	if got := findConversation(t, stores[1], "acme", "one").Stats; got != want {
		t.Errorf("the stats are %+v, want %+v", got, want)
	}
}

func checkMessagePages(t *testing.T, open func(string) store.Conversations) {
	s := open("a")
	insertConversation(t, s, newConversation("acme", "one"))
	var want []string
	for i := range 11 {
		want = append(want, addMessage(t, s, textMessage(fmt.Sprint(i))).Key)
	}
	for limit := 1; limit <= len(want)+1; limit++ {
		var got []string
		for after := ""; ; after = got[0] {
			page := readMessages(t, s, "acme", "one", after, limit)
			var keys []string
			for _, m := range page {
				keys = append(keys, m.Key)
			}
			got = slices.Concat(keys, got)
			if len(page) < limit {
				break
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("in pages of %d: %q, want %q", limit, got, want)
		}
	}
	_, err := s.Messages(t.Context(), "acme", "one", store.Page{After: atoll.NewID(), Limit: 1})
	wantKind(t, "Messages before a missing one", err, atoll.ErrNotExist)
}

// checkMessagesLeaveRest checks that messages and usage do not disturb the program that runs a turn.
func checkMessagesLeaveRest(t *testing.T, open func(string) store.Conversations) {
	s := open("a")
	c := insertConversation(t, s, newConversation("acme", "one"))
	want := *c
	m := addMessage(t, s, textMessage("hello"))
	for _, turn := range []int64{2, 3, 3, 2, 1} {
		if err := s.AddUsage(t.Context(), "acme", "one", turn, agent.TokenUsage{Input: 2, Output: 3, Cache: -4}); err != nil {
			t.Fatalf("AddUsage: %v", err)
		}
	}
	want.Stats = agent.Stats{MessagesExchanged: 2, InputTokens: 6, OutputTokens: 9, CacheTokens: 1<<60 - 8}
	want.Updated = m.Time
	wantEqual(t, "the conversation", findConversation(t, s, "acme", "one"), &want)
	// c was read before the messages, and is written after them.
	c.Turn, c.Until = nil, time.Time{}
	if err := s.UpdateConversation(t.Context(), c); err != nil {
		t.Fatalf("UpdateConversation: %v", err)
	}
	want.Turn, want.Caller, want.Until, want.Rev = nil, "", time.Time{}, c.Rev
	wantEqual(t, "the conversation", findConversation(t, s, "acme", "one"), &want)
	c.Updated = m.Time.Add(time.Minute)
	if err := s.UpdateConversation(t.Context(), c); err != nil {
		t.Fatalf("UpdateConversation: %v", err)
	}
	want.Updated, want.Rev = c.Updated, c.Rev
	wantEqual(t, "the conversation", findConversation(t, s, "acme", "one"), &want)
	wantKind(t, "AddUsage of a missing conversation", s.AddUsage(t.Context(), "acme", "two", 1, agent.TokenUsage{}), atoll.ErrNotExist)
}

func checkConversationDeleted(t *testing.T, open func(string) store.Conversations) {
	a, b := open("a"), open("a")
	for range 2 {
		c := insertConversation(t, a, newConversation("acme", "one"))
		wantMessages(t, a, "acme", "one")
		var first *agent.Message
		for i := range 60 {
			if m := addMessage(t, a, textMessage(fmt.Sprint(i))); first == nil {
				first = m
			}
		}
		if err := b.DeleteConversation(t.Context(), c); err != nil {
			t.Fatalf("DeleteConversation: %v", err)
		}
		_, err := a.Messages(t.Context(), "acme", "one", store.Page{Limit: 1})
		wantKind(t, "Messages of a deleted conversation", err, atoll.ErrNotExist)
		wantKind(t, "AddMessage to a deleted conversation", a.AddMessage(t.Context(), first), atoll.ErrNotExist)
		wantKind(t, "AddUsage of a deleted conversation", a.AddUsage(t.Context(), "acme", "one", 1, agent.TokenUsage{}), atoll.ErrNotExist)
		all, err := a.Conversations(t.Context(), "acme", store.Page{Limit: 1})
		if len(all) > 0 || err != nil {
			t.Errorf("Conversations: %+v, %v", all, err)
		}
	}
}

func checkDeletedMeanwhile(t *testing.T, open func(string) store.Conversations) {
	stores := []store.Conversations{open("a"), open("a"), open("a")}
	c := insertConversation(t, stores[0], newConversation("acme", "one"))
	var all sync.WaitGroup
	added := make(chan struct{}, 1)
	for i := range 6 {
		s := stores[i%len(stores)]
		all.Go(func() {
			for {
				err := s.AddMessage(t.Context(), textMessage("late"))
				if atoll.KindOf(err) == atoll.ErrNotExist {
					return
				}
				if err != nil {
					t.Errorf("AddMessage: %v", err)
					return
				}
				select {
				case added <- struct{}{}:
				default:
				}
			}
		})
	}
	<-added
	if err := stores[0].DeleteConversation(t.Context(), c); err != nil {
		t.Errorf("DeleteConversation: %v", err)
	}
	all.Wait()
	insertConversation(t, stores[0], newConversation("acme", "one"))
	wantMessages(t, stores[1], "acme", "one")
	wantCount(t, stores[1], 0)
}
