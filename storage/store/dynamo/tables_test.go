package dynamo

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
)

// Concurrent calls create the tables once. Tables with another layout are refused.
func TestEnsureTables(t *testing.T) {
	p := newProxy(t, testenv.DynamoDB(t))
	opts := optionsFor(p.endpoint)
	opts.Prefix = "many-"
	errs := make(chan error)
	const n = 10
	for range n {
		s := open(t, opts)
		go func() { errs <- s.EnsureTables(t.Context()) }()
	}
	for range n {
		if err := <-errs; err != nil {
			t.Errorf("EnsureTables: %v", err)
		}
	}
	insert(t, open(t, opts), "one")
	p.set(nil)
	if err := open(t, opts).EnsureTables(t.Context()); err != nil || slices.Contains(p.operations(), "CreateTable") {
		t.Errorf("EnsureTables with existing tables: %v, requests %q", err, p.operations())
	}

	opts.Prefix = "none-"
	s := open(t, opts)
	_, err := s.FindConversation(t.Context(), "acme", "one")
	wantKind(t, "FindConversation without tables", err, atoll.ErrUnavailable)
	if err == nil || !strings.Contains(err.Error(), "none-*") {
		t.Errorf("FindConversation without tables: %v", err)
	}

	opts.Prefix = "other-"
	s = open(t, opts)
	l := layouts[messagesTable]
	in := s.createTableInput(messagesTable, l)
	in.LocalSecondaryIndexes, in.AttributeDefinitions = nil, in.AttributeDefinitions[:2]
	if _, err := s.client.CreateTable(t.Context(), in); err != nil {
		t.Fatal(err)
	}
	err = s.EnsureTables(t.Context())
	wantKind(t, "EnsureTables with another layout", err, atoll.ErrInvalid)

	opts.Prefix = "slow-"
	s = open(t, opts)
	p.set(func(op string, _ []byte, _ int) fault {
		if op == "DescribeTable" {
			return fault{status: http.StatusBadRequest, code: codeNoTable}
		}
		return fault{}
	})
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if err := s.EnsureTables(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("EnsureTables with a deadline: %v", err)
	}
}
