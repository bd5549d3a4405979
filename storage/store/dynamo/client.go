package dynamo

import (
	"context"
	"errors"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/aws/smithy-go/middleware"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/retry"
)

// cleanupTimeout bounds the work that goes on after the caller's context has ended.
const cleanupTimeout = 30 * time.Second

// detachContext returns a context for work that must be completed or undone although ctx ends.
func detachContext(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
}

// refuseClosed makes all requests of a closed store fail.
func (s *Store) refuseClosed(stack *middleware.Stack) error {
	return stack.Initialize.Add(middleware.InitializeMiddlewareFunc("refuseClosed", func(
		ctx context.Context, in middleware.InitializeInput, next middleware.InitializeHandler,
	) (middleware.InitializeOutput, middleware.Metadata, error) {
		if s.closed.Load() {
			return middleware.InitializeOutput{}, middleware.Metadata{}, errClosed()
		}
		return next.HandleInitialize(ctx, in)
	}), middleware.Before)
}

func errClosed() error { return atoll.Errorf("", "", atoll.ErrUnavailable, "the store is closed") }

// keyOf returns the key of an item.
func keyOf(table, hash, sort string) item {
	l := layouts[table]
	return item{l.hash.name: textOf(hash), l.sort.name: textOf(sort)}
}

// getItem returns an item with all previous writes, or nil if it does not exist.
func (s *Store) getItem(ctx context.Context, table, hash, sort string) (item, error) {
	out, err := s.client.GetItem(ctx, &dynamodb.GetItemInput{
		TableName: aws.String(s.prefix + table), Key: keyOf(table, hash, sort), ConsistentRead: aws.Bool(true),
	})
	if err != nil || len(out.Item) == 0 {
		return nil, err
	}
	return out.Item, nil
}

// putItem writes a whole item if no item has its key.
func (s *Store) putItem(ctx context.Context, table string, it item) error {
	var e expr
	e.requireAbsent(layouts[table].hash.name)
	_, err := s.client.PutItem(ctx, &dynamodb.PutItemInput{
		TableName: aws.String(s.prefix + table), Item: dropNil(it), ConditionExpression: e.conditionText(), ExpressionAttributeNames: e.names,
	})
	return err
}

// updateItem applies e to an item and returns the previous attributes.
func (s *Store) updateItem(ctx context.Context, table, hash, sort string, e *expr) (item, error) {
	out, err := s.client.UpdateItem(ctx, &dynamodb.UpdateItemInput{
		TableName: aws.String(s.prefix + table), Key: keyOf(table, hash, sort),
		UpdateExpression: aws.String(e.updateText()), ConditionExpression: e.conditionText(),
		ExpressionAttributeNames: e.names, ExpressionAttributeValues: e.values, ReturnValues: types.ReturnValueAllOld,
	})
	if err != nil {
		return nil, err
	}
	return out.Attributes, nil
}

// removeItem removes an item if the attribute has that value. Otherwise it does nothing.
func (s *Store) removeItem(ctx context.Context, table, hash, sort, attribute, value string) error {
	var e expr
	e.requireEqual(textOf(value), attribute)
	_, err := s.client.DeleteItem(ctx, &dynamodb.DeleteItemInput{
		TableName: aws.String(s.prefix + table), Key: keyOf(table, hash, sort),
		ConditionExpression: e.conditionText(), ExpressionAttributeNames: e.names, ExpressionAttributeValues: e.values,
	})
	if isRefused(err) {
		return nil
	}
	return err
}

// A selection describes a query. The condition of e is on keys.
type selection struct {
	table, index string // "" is the table itself
	e            expr
	filter       string // uses the names of e
	fields       string // attributes to read; "" for all
	newest       bool   // in descending order
	limit        int    // 0 for no limit
}

// queryItems calls each with the selected items, in order and with all previous writes.
func (s *Store) queryItems(ctx context.Context, q selection, each func(item) error) error {
	in := &dynamodb.QueryInput{
		TableName: aws.String(s.prefix + q.table), IndexName: orNil(q.index), ConsistentRead: aws.Bool(true), ScanIndexForward: aws.Bool(!q.newest),
		KeyConditionExpression: q.e.conditionText(), FilterExpression: orNil(q.filter), ProjectionExpression: orNil(q.fields),
		ExpressionAttributeNames: q.e.names, ExpressionAttributeValues: q.e.values,
	}
	for n := 0; ; {
		if q.limit > 0 {
			in.Limit = aws.Int32(int32(min(q.limit-n, 1000)))
		}
		out, err := s.client.Query(ctx, in)
		if err != nil {
			return err
		}
		for _, it := range out.Items {
			if err := each(it); err != nil {
				return err
			}
			n++
		}
		if len(out.LastEvaluatedKey) == 0 || q.limit > 0 && n >= q.limit {
			return nil
		}
		in.ExclusiveStartKey = out.LastEvaluatedKey
	}
}

func orNil(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

// maxBatch is the maximum number of items that one request removes.
const maxBatch = 25

// removeItems removes items with the same hash key, whether they exist or not.
func (s *Store) removeItems(ctx context.Context, table, hash string, sorts []string) error {
	name := s.prefix + table
	for len(sorts) > 0 {
		n := min(maxBatch, len(sorts))
		var left []types.WriteRequest
		for _, sort := range sorts[:n] {
			left = append(left, types.WriteRequest{DeleteRequest: &types.DeleteRequest{Key: keyOf(table, hash, sort)}})
		}
		sorts = sorts[n:]
		policy := retry.Policy{First: 250 * time.Millisecond, Max: s.opts.Backoff, Attempts: s.opts.Attempts}
		err := policy.Do(ctx, func() error {
			out, err := s.client.BatchWriteItem(ctx, &dynamodb.BatchWriteItemInput{RequestItems: map[string][]types.WriteRequest{name: left}})
			if err != nil {
				return retry.Permanent(err) // the client has already retried
			}
			if left = out.UnprocessedItems[name]; len(left) > 0 {
				return &types.ProvisionedThroughputExceededException{Message: aws.String("some items were not removed")}
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// isRefused reports whether a write failed because its condition does not hold.
func isRefused(err error) bool {
	var e *types.ConditionalCheckFailedException
	return errors.As(err, &e)
}
