package dynamo

import (
	"context"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
)

// A claim is a place among the messages of a conversation.
type claim struct {
	birth  string
	time   time.Time
	before types.AttributeValue // attrLast, before it; nil if there was none, or it is not known
}

// claimTime writes down that a message is about to be added, with a time that is at
// least at, and after that of all others. Who adds the same message gets the same.
func (s *Store) claimTime(ctx context.Context, r ref, key string, at time.Time) (claim, error) {
	at = fromMicro(at.UnixMicro())
	for behind := false; ; {
		old, err := s.update(ctx, r.table, r.account, r.id, claiming(key, at.UnixMicro(), behind))
		if err == nil {
			f := fieldsOf(old)
			c := claim{birth: f.text(attrBirth), time: at, before: old[attrLast]}
			if behind {
				c.time = fromMicro(f.number(attrLast) + 1)
			}
			return c, *f.err
		}
		if !isRefused(err) {
			return claim{}, err
		}
		now, err := s.find(ctx, r)
		if err != nil {
			return claim{}, err
		}
		if now == nil {
			return claim{}, errNoConversation()
		}
		f := fieldsOf(now)
		if pending := f.sub(attrPending); pending.has(key) {
			return claim{birth: f.text(attrBirth), time: pending.time(key)}, *f.err
		}
		behind = f.has(attrLast) && f.number(attrLast) >= at.UnixMicro()
	}
}

// claiming is the change with which a message gets the time at, or, where it is behind,
// the one after the newest.
func claiming(key string, at int64, behind bool) *expr {
	var e expr
	e.exists(attrID)
	e.absent(attrGone)
	e.absent(attrPending, key)
	last := e.name(attrLast)
	if behind {
		next := last + " + " + e.value(numberOf(1))
		e.setTo(next, attrLast)
		e.setTo(next, attrPending, key)
		e.conds = append(e.conds, last+" >= "+e.value(numberOf(at)))
		return &e
	}
	e.set(numberOf(at), attrLast)
	e.set(numberOf(at), attrPending, key)
	e.conds = append(e.conds, "(attribute_not_exists("+last+") OR "+last+" < "+e.value(numberOf(at))+")")
	return &e
}

// count counts a message that was added with that claim. It reports false when the
// conversation is not there any more.
func (s *Store) count(ctx context.Context, r ref, key string, c claim) (there bool, err error) {
	var e expr
	e.equals(textOf(c.birth), attrBirth)
	e.absent(attrGone)
	e.equals(timeOf(c.time), attrPending, key)
	e.add(1, attrStats, attrMessages)
	e.setTo(e.name(attrLast), attrSaved) // which goes up only
	e.remove(attrPending, key)
	if _, err := s.update(ctx, r.table, r.account, r.id, &e); !isRefused(err) {
		return true, err
	}
	it, err := s.find(ctx, r)
	if err != nil {
		return true, err
	}
	// If it is there the message has been counted: the answer was lost, or somebody else
	// adds the same one.
	return it != nil && fieldsOf(it).text(attrBirth) == c.birth, nil
}

// unclaim gives up a claim of a message that was there already, and its time, unless
// there are later ones.
func (s *Store) unclaim(ctx context.Context, r ref, key string, c claim) error {
	for _, restore := range []bool{c.before != nil, false} {
		var e expr
		e.equals(textOf(c.birth), attrBirth)
		e.equals(timeOf(c.time), attrPending, key)
		e.remove(attrPending, key)
		if restore {
			e.equals(timeOf(c.time), attrLast)
			e.set(c.before, attrLast)
		}
		if _, err := s.update(ctx, r.table, r.account, r.id, &e); !isRefused(err) {
			return err
		}
	}
	return nil // somebody else has
}
