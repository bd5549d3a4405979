package stack

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/agent"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
	"github.com/seed46cd37a8/atoll/storage/store"
)

func TestOpenConversations(t *testing.T) {
	t.Setenv("CONVERSATION_ACCESS_KEY", "testak")
	t.Setenv("CONVERSATION_SECRET_KEY", "testsecret1")
	for name, text := range map[string]string{
		"sqlite": "{}",
		"dynamodb": "{store: dynamodb, table_prefix: config-, endpoint: \"" + testenv.DynamoDB(t) + "\", " +
			"access_key: env:CONVERSATION_ACCESS_KEY, secret_key: env:CONVERSATION_SECRET_KEY}",
	} {
		t.Run(name, func(t *testing.T) {
			b, err := loadBuilder(t, "conversation: "+text, nil, nil)
			if err != nil {
				t.Fatal(err)
			}
			var log bytes.Buffer
			for round := range 2 { // the second time, the tables exist
				s, err := b.OpenConversations(t.Context(), slog.New(slog.NewTextHandler(&log, nil)))
				if err != nil {
					t.Fatalf("OpenConversations: %v", err)
				}
				c := &store.Conversation{Conversation: agent.Conversation{ID: "one", Account: "acme"}}
				if err := s.InsertConversation(t.Context(), c); round == 0 && err != nil || round == 1 && atoll.KindOf(err) != atoll.ErrAlreadyExists {
					t.Errorf("InsertConversation: %v", err)
				}
				if err := s.Close(); err != nil {
					t.Errorf("Close: %v", err)
				}
			}
			_, err = os.Stat(filepath.Join(b.StateDir, "atoll.db"))
			if got, want := err == nil, name == "sqlite"; got != want {
				t.Errorf("atoll.db exists: %v, want %v", got, want)
			}
			if got, want := strings.Count(log.String(), "make table"), map[string]int{"dynamodb": 3}[name]; got != want {
				t.Errorf("the log has %d created tables, want %d:\n%s", got, want, log.String())
			}
		})
	}
}

func TestOpenConversationsFails(t *testing.T) {
	b, err := loadBuilder(t, "conversation: {store: dynamodb, endpoint: \"http://127.0.0.1:1\", access_key: env:CONVERSATION_NONE, secret_key: env:CONVERSATION_NONE}", nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	_, err = b.OpenConversations(t.Context(), nil)
	if atoll.KindOf(err) != atoll.ErrDenied || !strings.Contains(err.Error(), "CONVERSATION_NONE") {
		t.Errorf("OpenConversations with a missing secret: %v", err)
	}
}
