package dynamo

import (
	"context"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
)

// A claim reserves a place among the messages of a conversation.
type claim struct {
	birth  string
	time   time.Time
	before types.AttributeValue // attrLast before the claim; nil if there was none, or it is unknown
}

// claimTime records that the message key is about to be added, with a time of at least at and after that of all other
// messages. Concurrent calls for the same message return the same time.
func (s *Store) claimTime(ctx context.Context, r ref, key string, at time.Time) (claim, error) {
	at = fromMicro(at.UnixMicro())
	for behind := false; ; {
		old, err := s.updateItem(ctx, r.table, r.account, r.id, claimExpr(key, at.UnixMicro(), behind))
		if err == nil {
			f := fieldsOf(old)
			c := claim{birth: f.textField(attrBirth), time: at, before: old[attrLast]}
			if behind {
				c.time = fromMicro(f.numberField(attrLast) + 1)
			}
			return c, *f.err
		}
		if !isRefused(err) {
			return claim{}, err
		}
		now, err := s.findRecord(ctx, r)
		if err != nil {
			return claim{}, err
		}
		if now == nil {
			return claim{}, errNoConversation()
		}
		f := fieldsOf(now)
		if pending := f.subFields(attrPending); pending.hasField(key) {
			return claim{birth: f.textField(attrBirth), time: pending.timeField(key)}, *f.err
		}
		behind = f.hasField(attrLast) && f.numberField(attrLast) >= at.UnixMicro()
	}
}

// claimExpr returns the update that gives a message the time at. If behind is set, it gives the time after the newest
// message instead.
func claimExpr(key string, at int64, behind bool) *expr {
	var e expr
	e.requireExists(attrID)
	e.requireAbsent(attrGone)
	e.requireAbsent(attrPending, key)
	last := e.namePlaceholder(attrLast)
	if behind {
		next := last + " + " + e.valuePlaceholder(numberOf(1))
		e.setToExpr(next, attrLast)
		e.setToExpr(next, attrPending, key)
		e.conds = append(e.conds, last+" >= "+e.valuePlaceholder(numberOf(at)))
		return &e
	}
	e.setField(numberOf(at), attrLast)
	e.setField(numberOf(at), attrPending, key)
	e.conds = append(e.conds, "(attribute_not_exists("+last+") OR "+last+" < "+e.valuePlaceholder(numberOf(at))+")")
	return &e
}

// countMessage counts a message that was added with claim c. It reports false if the conversation no longer exists.
func (s *Store) countMessage(ctx context.Context, r ref, key string, c claim) (there bool, err error) {
	var e expr
	e.requireEqual(textOf(c.birth), attrBirth)
	e.requireAbsent(attrGone)
	e.requireEqual(timeOf(c.time), attrPending, key)
	e.addNumber(1, attrStats, attrMessages)
	e.setToExpr(e.namePlaceholder(attrLast), attrSaved) // only increases
	e.removeField(attrPending, key)
	if _, err := s.updateItem(ctx, r.table, r.account, r.id, &e); !isRefused(err) {
		return true, err
	}
	it, err := s.findRecord(ctx, r)
	if err != nil {
		return true, err
	}
	// If the conversation exists, the message has been counted: either the answer was lost, or another caller adds
	// the same message.
	return it != nil && fieldsOf(it).textField(attrBirth) == c.birth, nil
}

// releaseClaim gives up the claim of a message that already existed. It restores the previous newest time, unless
// there are later claims.
func (s *Store) releaseClaim(ctx context.Context, r ref, key string, c claim) error {
	for _, restore := range []bool{c.before != nil, false} {
		var e expr
		e.requireEqual(textOf(c.birth), attrBirth)
		e.requireEqual(timeOf(c.time), attrPending, key)
		e.removeField(attrPending, key)
		if restore {
			e.requireEqual(timeOf(c.time), attrLast)
			e.setField(c.before, attrLast)
		}
		if _, err := s.updateItem(ctx, r.table, r.account, r.id, &e); !isRefused(err) {
			return err
		}
	}
	return nil // another caller has
}
