package dynamo

import (
	"context"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/storage/store"
)

// Attributes of conversations and sandboxes.
const (
	attrAccount      = "account"
	attrID           = "id"
	attrOrganization = "organization"
	attrAgent        = "agent_id"
	attrTemplate     = "provider"
	attrCreated      = "created"
	attrRev          = "rev"
	// attrWrite is a random mark of each write that needs a rev. If the answer of a write was lost, its repetition
	// fails the condition; the mark shows that the first attempt succeeded.
	attrWrite = "write"
	// attrGone marks a deleted record with a random id of the deletion. The data of the record is removed before the
	// record itself.
	attrGone = "gone"
)

// A ref is the key of a record: a conversation or a sandbox.
type ref struct{ table, account, id string }

// isValid reports whether such a record can exist.
func (r ref) isValid() bool { return atoll.ValidName(r.account) && atoll.ValidName(r.id) }

// findRecord returns a record, or nil if it does not exist.
func (s *Store) findRecord(ctx context.Context, r ref) (item, error) {
	if !r.isValid() {
		return nil, s.checkUsable(ctx)
	}
	it, err := s.getItem(ctx, r.table, r.account, r.id)
	if err != nil || it[attrGone] != nil {
		return nil, err
	}
	return it, nil
}

// checkUsable returns the error of a closed store or an ended context, for calls that need no request.
func (s *Store) checkUsable(ctx context.Context) error {
	if s.closed.Load() {
		return errClosed()
	}
	return ctx.Err()
}

// insertRecord adds a record and returns its first rev.
func (s *Store) insertRecord(ctx context.Context, r ref, it item) (rev int64, err error) {
	mark, rev := atoll.NewID(), store.FirstRev()
	it[attrAccount], it[attrID], it[attrRev], it[attrWrite] = textOf(r.account), textOf(r.id), numberOf(rev), textOf(mark)
	for {
		if err := s.putItem(ctx, r.table, it); !isRefused(err) {
			return rev, err
		}
		old, err := s.getItem(ctx, r.table, r.account, r.id)
		if err != nil {
			return 0, err
		}
		f := fieldsOf(old)
		switch {
		case old == nil: // it disappeared just now
		case f.hasField(attrGone):
			if err := s.finishDelete(ctx, r, f); err != nil {
				return 0, err
			}
		case f.textField(attrWrite) == mark: // the answer was lost
			return rev, nil
		default:
			return 0, atoll.Errorf("", "", atoll.ErrAlreadyExists, "a record with this id already exists")
		}
	}
}

// changeRecord applies e to a record if its rev is the given one. Kinds: ErrConflict.
func (s *Store) changeRecord(ctx context.Context, r ref, rev int64, e *expr) error {
	changed := atoll.E("", "", atoll.ErrConflict, store.ErrChanged)
	if !r.isValid() {
		if err := s.checkUsable(ctx); err != nil {
			return err
		}
		return changed
	}
	mark := atoll.NewID()
	e.requireEqual(numberOf(rev), attrRev)
	e.requireAbsent(attrGone)
	e.setField(numberOf(rev+1), attrRev)
	e.setField(textOf(mark), attrWrite)
	_, err := s.updateItem(ctx, r.table, r.account, r.id, e)
	if !isRefused(err) {
		return err
	}
	now, err := s.getItem(ctx, r.table, r.account, r.id)
	if err != nil {
		return err
	}
	f := fieldsOf(now)
	if f.hasField(attrGone) && f.numberField(attrRev) == rev+1 && f.textField(attrWrite) != mark {
		// A caller has deleted this revision and was interrupted, perhaps the current caller.
		if err := s.finishDelete(ctx, r, f); err != nil {
			return err
		}
		return changed
	}
	if f.textField(attrWrite) == mark { // the answer was lost
		return nil
	}
	return changed
}

// deleteRecord deletes a record if its rev is the given one. The record disappears at once. index is the attribute
// that its index is sorted by.
func (s *Store) deleteRecord(ctx context.Context, r ref, rev int64, index string) error {
	gone := atoll.NewID()
	var e expr
	e.setField(textOf(gone), attrGone)
	e.removeField(index)
	if err := s.changeRecord(ctx, r, rev, &e); err != nil {
		return err
	}
	it, err := s.getItem(ctx, r.table, r.account, r.id)
	if err != nil || it == nil {
		return err
	}
	return s.finishDelete(ctx, r, fieldsOf(it))
}

// finishDelete removes the data of a deleted record, and then the record. Any caller that finds such a record may
// call it.
func (s *Store) finishDelete(ctx context.Context, r ref, f fields) error {
	gone := f.textField(attrGone)
	if gone == "" {
		return nil // the record is not deleted; it has been replaced
	}
	if r.table == conversationsTable {
		if err := s.removeMessages(ctx, collectionKey(r.account, r.id, f.textField(attrBirth))); err != nil {
			return err
		}
	}
	return s.removeItem(ctx, r.table, r.account, r.id, attrGone, gone)
}

// listRecords calls each with the records of an account that are not deleted, sorted by id, or with those in an
// index.
func (s *Store) listRecords(ctx context.Context, table, index, account string, page store.Page, each func(fields) error) error {
	if !atoll.ValidName(account) {
		return s.checkUsable(ctx)
	}
	q := selection{table: table, index: index, limit: page.Limit}
	q.e.requireEqual(textOf(account), attrAccount)
	if page.After != "" {
		sort := layouts[table].sort
		if index != "" {
			sort = layouts[table].indexed
		}
		q.e.conds = append(q.e.conds, q.e.namePlaceholder(sort.name)+" > "+q.e.valuePlaceholder(textOf(page.After)))
	}
	q.filter = "attribute_not_exists(" + q.e.namePlaceholder(attrGone) + ")"
	return s.queryItems(ctx, q, func(it item) error { return each(fieldsOf(it)) })
}
