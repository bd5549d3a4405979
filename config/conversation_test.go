package config

import (
	"strings"
	"testing"
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
