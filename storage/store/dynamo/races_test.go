package dynamo

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
	"github.com/seed46cd37a8/atoll/storage/store"
)

// A program that is killed while it adds a message can add it again; the message exists and counts once.
func TestAddMessageCutShort(t *testing.T) {
	p := newProxy(t, testenv.DynamoDB(t))
	direct := openReady(t, optionsFor(p.target))
	opts := optionsFor(p.endpoint)
	opts.Attempts = 1
	for _, body := range []string{"a", large} {
		want := fmt.Sprintf("f1 %.1s%d", body, len(body))
		for n := 1; ; n++ {
			c := insert(t, direct, "one")
			if err := direct.AddMessage(t.Context(), message("first", "f")); err != nil {
				t.Fatal(err)
			}
			p.nth(n, 1<<30, fault{cut: true})
			m := message("key", body)
			err := open(t, opts).AddMessage(t.Context(), m)
			if err != nil {
				wantKind(t, "AddMessage", err, atoll.ErrUnavailable)
			}
			asked := len(p.operations())
			if err := direct.AddMessage(t.Context(), m); err != nil {
				t.Fatalf("AddMessage again: %v", err)
			}
			wantState(t, direct, want)
			if err := direct.DeleteConversation(t.Context(), c); err != nil {
				t.Fatalf("DeleteConversation: %v", err)
			}
			if left := leftovers(t, direct); len(left) > 0 {
				t.Errorf("left: %q", left)
			}
			if t.Failed() {
				t.Fatalf("killed at request %d", n)
			}
			if err == nil {
				break
			}
			if asked < n {
				t.Fatalf("AddMessage sent %d requests and failed without a fault: %v", asked, err)
			}
		}
	}
}

// If a program is killed while it deletes a conversation, the conversation either exists or is deleted, and no other
// conversation gets its messages.
func TestDeleteCutShort(t *testing.T) {
	p := newProxy(t, testenv.DynamoDB(t))
	direct := openReady(t, optionsFor(p.target))
	opts := optionsFor(p.endpoint)
	opts.Attempts = 1
	for again, check := range map[string]func(c *store.Conversation){
		"deleted again": func(c *store.Conversation) {
			if err := direct.DeleteConversation(t.Context(), c); err != nil {
				wantKind(t, "DeleteConversation again", err, atoll.ErrConflict)
			}
			if left := leftovers(t, direct); len(left) > 0 {
				t.Errorf("left: %q", left)
			}
		},
		"inserted again": func(c *store.Conversation) {
			if _, err := direct.FindConversation(t.Context(), "acme", "one"); err == nil {
				if err := direct.DeleteConversation(t.Context(), c); err != nil {
					t.Errorf("DeleteConversation: %v", err)
				}
			}
		},
	} {
		for n := 1; ; n++ {
			c := insert(t, direct, "one")
			for i := range 2 * maxBatch {
				if err := direct.AddMessage(t.Context(), message(fmt.Sprint("k", i), "x")); err != nil {
					t.Fatal(err)
				}
			}
			p.nth(n, 1<<30, fault{cut: true})
			err := open(t, opts).DeleteConversation(t.Context(), c)
			_, found := direct.FindConversation(t.Context(), "acme", "one")
			listed, listing := direct.Conversations(t.Context(), "acme", store.Page{Limit: 2})
			if listing != nil || (len(listed) == 1) != (found == nil) {
				t.Errorf("FindConversation: %v; Conversations: %d, %v", found, len(listed), listing)
			}
			check(c)
			next := insert(t, direct, "one")
			wantState(t, direct, "")
			if left := leftovers(t, direct); len(left) > 0 {
				t.Errorf("left: %q", left)
			}
			if err := direct.DeleteConversation(t.Context(), next); err != nil {
				t.Errorf("DeleteConversation: %v", err)
			}
			if t.Failed() {
				t.Fatalf("%s, after a kill at request %d", again, n)
			}
			if err == nil {
				break
			}
			wantKind(t, "DeleteConversation", err, atoll.ErrUnavailable)
		}
	}
}

// A message that arrives during or after the deletion of its conversation is deleted with it, even if another
// conversation has its id.
func TestAddMessageTooLate(t *testing.T) {
	p := newProxy(t, testenv.DynamoDB(t))
	direct := openReady(t, optionsFor(p.target))
	s := open(t, optionsFor(p.endpoint))
	for _, body := range []string{"x", large} {
		for _, now := range []string{"gone", "going", "new"} {
			c := insert(t, direct, "one")
			p.set(func(op string, body []byte, _ int) fault {
				if op != "PutItem" || !strings.Contains(string(body), attrTimestamp) {
					return fault{}
				}
				return fault{before: func() {
					if now == "going" { // the deleting program was killed
						var e expr
						e.setField(textOf("mark"), attrGone)
						if err := direct.changeRecord(context.Background(), conversationRef("acme", "one"), c.Rev, &e); err != nil {
							t.Errorf("change: %v", err)
						}
						return
					}
					if err := direct.DeleteConversation(context.Background(), c); err != nil {
						t.Errorf("DeleteConversation: %v", err)
					}
					if now == "new" {
						insert(t, direct, "one")
					}
				}}
			})
			wantKind(t, "AddMessage", s.AddMessage(t.Context(), message("key", body)), atoll.ErrNotExist)
			if left := leftovers(t, direct); len(left) > 0 {
				t.Errorf("%s: left: %q", now, left)
			}
			if now == "going" {
				insert(t, direct, "one")
			}
			if now != "gone" {
				wantState(t, direct, "")
				c, err := direct.FindConversation(t.Context(), "acme", "one")
				if err != nil {
					t.Fatal(err)
				}
				if err := direct.DeleteConversation(t.Context(), c); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
}

// Two callers add the same message. One of them waits before one of its requests until the other is done.
func TestSameMessageInterleaved(t *testing.T) {
	p := newProxy(t, testenv.DynamoDB(t))
	direct := openReady(t, optionsFor(p.target))
	s := open(t, optionsFor(p.endpoint))
	for _, tt := range []struct {
		body   string
		offset time.Duration // of the time of the other call
	}{{"x", 0}, {large, 0}, {"x", time.Minute}, {large, -time.Minute}} {
		body, offset := tt.body, tt.offset
		for n := 1; ; n++ {
			c := insert(t, direct, "one")
			p.set(func(_ string, _ []byte, i int) fault {
				if i != n {
					return fault{}
				}
				return fault{before: func() {
					same := message("key", "y")
					same.Time = same.Time.Add(offset)
					if err := direct.AddMessage(context.Background(), same); err != nil {
						t.Errorf("AddMessage: %v", err)
					}
					after := message("after", "z")
					after.Time = after.Time.Add(time.Hour)
					if err := direct.AddMessage(context.Background(), after); err != nil {
						t.Errorf("AddMessage: %v", err)
					}
				}}
			})
			m := message("key", body)
			if err := s.AddMessage(t.Context(), m); err != nil {
				t.Errorf("AddMessage: %v", err)
			}
			asked := len(p.operations())
			kept := bodies(t, direct)
			if asked < n {
				wantState(t, direct, fmt.Sprintf("%.1s%d", body, len(body)))
			} else {
				wantState(t, direct, kept)
				if kept != "y1 z1" && kept != fmt.Sprintf("%.1s%d z1", body, len(body)) {
					t.Errorf("the messages are %q", kept)
				}
			}
			parts := strings.Count(kept, "L") * 2
			if keys, want := leftovers(t, direct), len(strings.Fields(kept))+parts; len(keys) != want {
				t.Errorf("messages %q have keys %q, want %d", kept, keys, want)
			}
			if err := direct.DeleteConversation(t.Context(), c); err != nil {
				t.Fatal(err)
			}
			if t.Failed() {
				t.Fatalf("interleaved at request %d", n)
			}
			if asked < n {
				break
			}
		}
	}
}
