package dynamo

import (
	"context"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/storage/store"
)

// Attributes of both conversations and sandboxes.
const (
	attrAccount      = "account"
	attrID           = "id"
	attrOrganization = "organization"
	attrAgent        = "agent_id"
	attrTemplate     = "provider"
	attrCreated      = "created"
	attrRev          = "rev"
	// attrWrite is drawn by each write that needs a rev. A request is made again when its
	// answer was lost, and is then in its own way: this tells.
	attrWrite = "write"
	// attrGone is there from the moment on in which a record is deleted: it is drawn by
	// whoever does that. What goes with the record is removed before the record is.
	attrGone = "gone"
)

// A ref is where a record is: a conversation, or a sandbox.
type ref struct{ table, account, id string }

// valid reports whether there may be such a record.
func (r ref) valid() bool { return atoll.ValidName(r.account) && atoll.ValidName(r.id) }

// find reads a record, nil if it is not there.
func (s *Store) find(ctx context.Context, r ref) (item, error) {
	if !r.valid() {
		return nil, s.ask(ctx)
	}
	it, err := s.get(ctx, r.table, r.account, r.id)
	if err != nil || it[attrGone] != nil {
		return nil, err
	}
	return it, nil
}

// ask is why nothing can be asked, where there is nothing to ask for.
func (s *Store) ask(ctx context.Context) error {
	if s.closed.Load() {
		return errClosed()
	}
	return ctx.Err()
}

// insert adds a record, with the first rev that it returns.
func (s *Store) insert(ctx context.Context, r ref, it item) (rev int64, err error) {
	mark, rev := atoll.NewID(), store.FirstRev()
	it[attrAccount], it[attrID], it[attrRev], it[attrWrite] = textOf(r.account), textOf(r.id), numberOf(rev), textOf(mark)
	for {
		if err := s.put(ctx, r.table, it); !isRefused(err) {
			return rev, err
		}
		old, err := s.get(ctx, r.table, r.account, r.id)
		if err != nil {
			return 0, err
		}
		f := fieldsOf(old)
		switch {
		case old == nil: // it was, a moment ago
		case f.has(attrGone):
			if err := s.bury(ctx, r, f); err != nil {
				return 0, err
			}
		case f.text(attrWrite) == mark: // the answer was lost
			return rev, nil
		default:
			return 0, atoll.Errorf("", "", atoll.ErrAlreadyExists, "there is one with this id already")
		}
	}
}

// change changes a record as e says, if it is what was read with rev.
func (s *Store) change(ctx context.Context, r ref, rev int64, e *expr) error {
	changed := atoll.E("", "", atoll.ErrConflict, store.ErrChanged)
	if !r.valid() {
		if err := s.ask(ctx); err != nil {
			return err
		}
		return changed
	}
	mark := atoll.NewID()
	e.equals(numberOf(rev), attrRev)
	e.absent(attrGone)
	e.set(numberOf(rev+1), attrRev)
	e.set(textOf(mark), attrWrite)
	_, err := s.update(ctx, r.table, r.account, r.id, e)
	if !isRefused(err) {
		return err
	}
	now, err := s.get(ctx, r.table, r.account, r.id)
	if err != nil {
		return err
	}
	f := fieldsOf(now)
	if f.has(attrGone) && f.number(attrRev) == rev+1 && f.text(attrWrite) != mark {
		// Somebody has deleted what is meant here, perhaps who asks now, and was cut short.
		if err := s.bury(ctx, r, f); err != nil {
			return err
		}
		return changed
	}
	if f.text(attrWrite) == mark { // the answer was lost
		return nil
	}
	return changed
}

// erase deletes a record, if it is what was read with rev. It is gone at once; index is
// the attribute by which an index knows it.
func (s *Store) erase(ctx context.Context, r ref, rev int64, index string) error {
	gone := atoll.NewID()
	var e expr
	e.set(textOf(gone), attrGone)
	e.remove(index)
	if err := s.change(ctx, r, rev, &e); err != nil {
		return err
	}
	it, err := s.get(ctx, r.table, r.account, r.id)
	if err != nil || it == nil {
		return err
	}
	return s.bury(ctx, r, fieldsOf(it))
}

// bury removes a record that is gone, and before it what goes with it. All who find one
// may do it.
func (s *Store) bury(ctx context.Context, r ref, f fields) error {
	gone := f.text(attrGone)
	if gone == "" {
		return nil // another, by now
	}
	if r.table == conversationsTable {
		if err := s.sweep(ctx, collection(r.account, r.id, f.text(attrBirth))); err != nil {
			return err
		}
	}
	return s.remove(ctx, r.table, r.account, r.id, attrGone, gone)
}

// list calls each with the records of an account that are not gone, sorted by id, or
// those that an index has.
func (s *Store) list(ctx context.Context, table, index, account string, page store.Page, each func(fields) error) error {
	if !atoll.ValidName(account) {
		return s.ask(ctx)
	}
	q := selection{table: table, index: index, limit: page.Limit}
	q.e.equals(textOf(account), attrAccount)
	if page.After != "" {
		sort := layouts[table].sort
		if index != "" {
			sort = layouts[table].indexed
		}
		q.e.conds = append(q.e.conds, q.e.name(sort.name)+" > "+q.e.value(textOf(page.After)))
	}
	q.filter = "attribute_not_exists(" + q.e.name(attrGone) + ")"
	return s.query(ctx, q, func(it item) error { return each(fieldsOf(it)) })
}
