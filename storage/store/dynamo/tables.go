package dynamo

import (
	"context"
	"errors"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/awsclient"
)

// The names of tables, without their prefix.
const (
	conversationsTable = "conversations"
	messagesTable      = "messages"
	sandboxesTable     = "sandboxes"
)

// The indexes.
const (
	runningIndex = "running" // of conversations
	newestIndex  = "newest"  // of messages
	liveIndex    = "live"    // of sandboxes
)

// A column is a key attribute.
type column struct {
	name string
	kind types.ScalarAttributeType
}

// A layout is the schema of a table and its index.
type layout struct {
	hash, sort column
	index      string
	indexed    column // sort key of the index; of a global index, its hash key
	global     bool
}

var layouts = map[string]layout{
	conversationsTable: {
		hash: column{attrAccount, types.ScalarAttributeTypeS}, sort: column{attrID, types.ScalarAttributeTypeS},
		index: runningIndex, indexed: column{attrRunning, types.ScalarAttributeTypeS}, global: true,
	},
	messagesTable: {
		hash: column{attrConversation, types.ScalarAttributeTypeS}, sort: column{attrKey, types.ScalarAttributeTypeS},
		index: newestIndex, indexed: column{attrTimestamp, types.ScalarAttributeTypeN},
	},
	sandboxesTable: {
		hash: column{attrAccount, types.ScalarAttributeTypeS}, sort: column{attrID, types.ScalarAttributeTypeS},
		index: liveIndex, indexed: column{attrLive, types.ScalarAttributeTypeS},
	},
}

// minPoll and maxPoll are the first and the longest interval of checks of a table that is being created.
const (
	minPoll = 20 * time.Millisecond
	maxPoll = 2 * time.Second
)

// EnsureTables creates missing tables, with billing per request, and waits until all are usable. Concurrent calls are
// safe. Kinds: ErrInvalid (an existing table has another layout), and those of all methods.
func (s *Store) EnsureTables(ctx context.Context) error {
	const op = "make tables"
	var wait []string
	for name, l := range layouts {
		ready, err := s.checkTable(ctx, name, l)
		if isMissing(err) {
			s.opts.Log.Info("make table", "table", s.prefix+name)
			if _, err = s.client.CreateTable(ctx, s.createTableInput(name, l)); isInUse(err) {
				err = nil // another program creates it
			}
		}
		if err != nil {
			return s.wrapError(ctx, op, s.prefix+name, err)
		}
		if !ready {
			wait = append(wait, name)
		}
	}
	for _, name := range wait {
		if err := s.awaitTable(ctx, name, layouts[name]); err != nil {
			return s.wrapError(ctx, op, s.prefix+name, err)
		}
	}
	return nil
}

// checkTable reports whether a table is usable.
func (s *Store) checkTable(ctx context.Context, name string, l layout) (ready bool, err error) {
	out, err := s.client.DescribeTable(ctx, &dynamodb.DescribeTableInput{TableName: aws.String(s.prefix + name)})
	if err != nil {
		return false, err
	}
	if out.Table == nil {
		return false, errNotDynamo
	}
	if !l.matchesTable(out.Table) {
		return false, atoll.Errorf("", "", atoll.ErrInvalid, "a table with this name and another layout exists: choose another prefix")
	}
	switch out.Table.TableStatus {
	case types.TableStatusActive, types.TableStatusUpdating:
		return true, nil
	case types.TableStatusCreating:
		return false, nil
	}
	return false, atoll.Errorf("", "", atoll.ErrUnavailable, "the table is %s", out.Table.TableStatus)
}

// awaitTable waits until a table is usable.
func (s *Store) awaitTable(ctx context.Context, name string, l layout) error {
	for pause := minPoll; ; pause = min(2*pause, maxPoll) {
		// A table that is being created may be invisible at first.
		if ready, err := s.checkTable(ctx, name, l); ready || err != nil && !isMissing(err) {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pause):
		}
	}
}

// createTableInput returns the request that creates a table.
func (s *Store) createTableInput(name string, l layout) *dynamodb.CreateTableInput {
	in := &dynamodb.CreateTableInput{
		TableName: aws.String(s.prefix + name), BillingMode: types.BillingModePayPerRequest, KeySchema: keySchema(l.hash, l.sort),
	}
	for _, c := range []column{l.hash, l.sort, l.indexed} {
		in.AttributeDefinitions = append(in.AttributeDefinitions, types.AttributeDefinition{AttributeName: aws.String(c.name), AttributeType: c.kind})
	}
	if l.global {
		in.GlobalSecondaryIndexes = []types.GlobalSecondaryIndex{{
			IndexName: &l.index, KeySchema: keySchema(l.indexed), Projection: &types.Projection{ProjectionType: types.ProjectionTypeKeysOnly},
		}}
		return in
	}
	in.LocalSecondaryIndexes = []types.LocalSecondaryIndex{{
		IndexName: &l.index, KeySchema: keySchema(l.hash, l.indexed), Projection: &types.Projection{ProjectionType: types.ProjectionTypeAll},
	}}
	return in
}

func keySchema(columns ...column) []types.KeySchemaElement {
	kinds := []types.KeyType{types.KeyTypeHash, types.KeyTypeRange}
	var all []types.KeySchemaElement
	for i, c := range columns {
		all = append(all, types.KeySchemaElement{AttributeName: aws.String(c.name), KeyType: kinds[i]})
	}
	return all
}

// matchesTable reports whether a table has the layout.
func (l layout) matchesTable(t *types.TableDescription) bool {
	if !isSchema(t.KeySchema, l.hash, l.sort) {
		return false
	}
	for _, x := range t.GlobalSecondaryIndexes {
		if l.global && aws.ToString(x.IndexName) == l.index {
			return isSchema(x.KeySchema, l.indexed)
		}
	}
	for _, x := range t.LocalSecondaryIndexes {
		if !l.global && aws.ToString(x.IndexName) == l.index {
			return isSchema(x.KeySchema, l.hash, l.indexed) && x.Projection != nil && x.Projection.ProjectionType == types.ProjectionTypeAll
		}
	}
	return false
}

func isSchema(got []types.KeySchemaElement, columns ...column) bool {
	want := keySchema(columns...)
	if len(got) != len(want) {
		return false
	}
	for i := range want {
		if aws.ToString(got[i].AttributeName) != *want[i].AttributeName || got[i].KeyType != want[i].KeyType {
			return false
		}
	}
	return true
}

func isMissing(err error) bool { return awsclient.Code(err) == codeNoTable }

func isInUse(err error) bool {
	var e *types.ResourceInUseException
	return errors.As(err, &e)
}
