package config

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

func TestConversationSettings(t *testing.T) {
	const keys = "access_key: env:A, secret_key: env:B"
	for _, tt := range []struct{ text, says string }{
		{"", ""},
		{"store: sqlite", ""},
		{"store: dynamodb", ""},
		{"store: dynamodb, table_prefix: a.b-c_, region: eu-west-1, endpoint: https://db.example.org, " + keys, ""},
		{"store: dynamodb, endpoint: http://127.0.0.1:8000", ""},
		{"store: dynamodb, endpoint: http://db.example.org, plain_http: true", ""},
		{"store: postgres", "sqlite"},
		{"store: dynamodb, table_prefix: a/b", "config.yaml:1: conversation.table_prefix: \"a/b\": use up to 200 letters"},
		{"store: dynamodb, endpoint: http://db.example.org", "config.yaml:1: conversation.endpoint: endpoint http://db.example.org: without TLS"},
		{"store: dynamodb, endpoint: db.example.org", "write it like https://host:port"},
		{"store: dynamodb, access_key: env:A", "config.yaml:1: conversation.access_key: requires conversation.secret_key"},
		{"store: dynamodb, access_key: AKIA1, secret_key: env:B", "write a reference"},
		{"endpoint: https://db.example.org", "conversation.endpoint: only valid for DynamoDB"},
		{"region: eu-west-1", "conversation.region: only valid for DynamoDB"},
		{keys, "conversation.access_key: only valid for DynamoDB"},
	} {
		_, err := load(t, "conversation: {"+tt.text+"}", nil, nil)
		if tt.says == "" && err != nil || tt.says != "" && (err == nil || !strings.Contains(err.Error(), tt.says)) {
			t.Errorf("{%s}: %v, want an error with %q", tt.text, err, tt.says)
		}
	}
}

func TestOpenConversations(t *testing.T) {
	t.Setenv("CONVERSATION_ACCESS_KEY", "testak")
	t.Setenv("CONVERSATION_SECRET_KEY", "testsecret1")
	for name, text := range map[string]string{
		"sqlite": "{}",
		"dynamodb": "{store: dynamodb, table_prefix: config-, endpoint: \"" + testenv.DynamoDB(t) + "\", " +
			"access_key: env:CONVERSATION_ACCESS_KEY, secret_key: env:CONVERSATION_SECRET_KEY}",
	} {
		t.Run(name, func(t *testing.T) {
			cfg, err := load(t, "conversation: "+text, nil, nil)
			if err != nil {
				t.Fatal(err)
			}
			var log bytes.Buffer
			for round := range 2 { // the second time, the tables exist
				s, err := cfg.OpenConversations(t.Context(), slog.New(slog.NewTextHandler(&log, nil)))
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
			_, err = os.Stat(filepath.Join(cfg.StateDir, "atoll.db"))
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
	cfg, err := load(t, "conversation: {store: dynamodb, endpoint: \"http://127.0.0.1:1\", access_key: env:CONVERSATION_NONE, secret_key: env:CONVERSATION_NONE}", nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	_, err = cfg.OpenConversations(t.Context(), nil)
	if atoll.KindOf(err) != atoll.ErrDenied || !strings.Contains(err.Error(), "CONVERSATION_NONE") {
		t.Errorf("OpenConversations with a missing secret: %v", err)
	}
}
