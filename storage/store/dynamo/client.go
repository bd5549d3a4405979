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
	"github.com/seed46cd37a8/atoll/internal/awsclient"
)

// grace is how long it may take to finish, or to undo, what was begun for somebody who
// has given up.
const grace = 30 * time.Second

// detached is for that.
func detached(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), grace)
}

// refuseClosed has a closed store ask nothing any more.
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

// keyOf is the key of an item.
func keyOf(table, hash, sort string) item {
	l := layouts[table]
	return item{l.hash.name: textOf(hash), l.sort.name: textOf(sort)}
}

// get reads an item, as the last write left it: nil if it is not there.
func (s *Store) get(ctx context.Context, table, hash, sort string) (item, error) {
	out, err := s.client.GetItem(ctx, &dynamodb.GetItemInput{
		TableName: aws.String(s.prefix + table), Key: keyOf(table, hash, sort), ConsistentRead: aws.Bool(true),
	})
	if err != nil || len(out.Item) == 0 {
		return nil, err
	}
	return out.Item, nil
}

// put writes an item whole, if there is none of its key.
func (s *Store) put(ctx context.Context, table string, it item) error {
	var e expr
	e.absent(layouts[table].hash.name)
	_, err := s.client.PutItem(ctx, &dynamodb.PutItemInput{
		TableName: aws.String(s.prefix + table), Item: without(it), ConditionExpression: e.condition(), ExpressionAttributeNames: e.names,
	})
	return err
}

// update changes an item as e says, and returns what it was.
func (s *Store) update(ctx context.Context, table, hash, sort string, e *expr) (item, error) {
	out, err := s.client.UpdateItem(ctx, &dynamodb.UpdateItemInput{
		TableName: aws.String(s.prefix + table), Key: keyOf(table, hash, sort),
		UpdateExpression: aws.String(e.update()), ConditionExpression: e.condition(),
		ExpressionAttributeNames: e.names, ExpressionAttributeValues: e.values, ReturnValues: types.ReturnValueAllOld,
	})
	if err != nil {
		return nil, err
	}
	return out.Attributes, nil
}

// remove removes an item of which an attribute has that value. One that is not there,
// or has another, is left as it is.
func (s *Store) remove(ctx context.Context, table, hash, sort, attribute, value string) error {
	var e expr
	e.equals(textOf(value), attribute)
	_, err := s.client.DeleteItem(ctx, &dynamodb.DeleteItemInput{
		TableName: aws.String(s.prefix + table), Key: keyOf(table, hash, sort),
		ConditionExpression: e.condition(), ExpressionAttributeNames: e.names, ExpressionAttributeValues: e.values,
	})
	if isRefused(err) {
		return nil
	}
	return err
}

// A selection is what a query is about. The condition of e is on keys.
type selection struct {
	table, index string // "" is the table itself
	e            expr
	filter       string // with names of e
	fields       string // that are read; "" is all
	newest       bool   // backwards
	limit        int    // 0 is all
}

// query calls each with what is selected, in order, as the last writes left it.
func (s *Store) query(ctx context.Context, q selection, each func(item) error) error {
	in := &dynamodb.QueryInput{
		TableName: aws.String(s.prefix + q.table), IndexName: orNil(q.index), ConsistentRead: aws.Bool(true), ScanIndexForward: aws.Bool(!q.newest),
		KeyConditionExpression: q.e.condition(), FilterExpression: orNil(q.filter), ProjectionExpression: orNil(q.fields),
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

// batch is how many items one request may remove.
const batch = 25

// removeAll removes items of one hash, there or not.
func (s *Store) removeAll(ctx context.Context, table, hash string, sorts []string) error {
	name := s.prefix + table
	for len(sorts) > 0 {
		n := min(batch, len(sorts))
		var left []types.WriteRequest
		for _, sort := range sorts[:n] {
			left = append(left, types.WriteRequest{DeleteRequest: &types.DeleteRequest{Key: keyOf(table, hash, sort)}})
		}
		sorts = sorts[n:]
		for attempt := 1; ; attempt++ {
			out, err := s.client.BatchWriteItem(ctx, &dynamodb.BatchWriteItemInput{RequestItems: map[string][]types.WriteRequest{name: left}})
			if err != nil {
				return err
			}
			if left = out.UnprocessedItems[name]; len(left) == 0 {
				break
			}
			if attempt >= s.opts.Attempts {
				return &types.ProvisionedThroughputExceededException{Message: aws.String("items are left that could not be removed")}
			}
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(awsclient.Backoff(attempt, s.opts.Backoff)):
			}
		}
	}
	return nil
}

// isRefused reports whether a write was not done because its condition does not hold.
func isRefused(err error) bool {
	var e *types.ConditionalCheckFailedException
	return errors.As(err, &e)
}
