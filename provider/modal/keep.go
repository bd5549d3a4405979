package modal

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"strconv"
	"strings"
	"time"

	pb "github.com/modal-labs/libmodal/modal-go/proto/modal_proto"
	"google.golang.org/grpc/codes"
)

// readAllLatest are the last pages of all subjects.
func (b *store) readAllLatest(ctx context.Context) (all map[string]*revision, err error) {
	err = b.withDict(ctx, func(dict string) (err error) {
		all, err = b.readContents(ctx, dict)
		for try := 1; try < readTries && isCode(err, codes.Unavailable) && ctx.Err() == nil; try++ {
			all, err = b.readContents(ctx, dict)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	b.mu.Lock()
	known := maps.Clone(b.lastSeen)
	b.mu.Unlock()
	for of, at := range all {
		if at.Spent { // the one after it was written while these were read
			known[of] = max(known[of], at.Number)
			delete(all, of)
		}
	}
	for of, number := range known {
		if all[of] != nil {
			continue
		}
		at, err := b.followRevisions(ctx, of, number) // it may have been turned while the others were read
		if err != nil {
			return nil, err
		}
		if at == nil {
			b.forgetRevision(of) // somebody has forgotten it
			continue
		}
		all[of] = at
	}
	for of, at := range all {
		b.noteRevision(of, at.Number)
	}
	return all, nil
}

// readTries is how often all is asked for that breaks off.
const readTries = 3

// readContents are the last pages that a Dict has, with those before them: spent ones where no
// other is seen.
func (b *store) readContents(ctx context.Context, dict string) (map[string]*revision, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	begun := wallTime()
	stream, err := b.service.pb.DictContents(ctx, pb.DictContentsRequest_builder{DictId: dict, Keys: true, Values: true}.Build())
	if err != nil {
		return nil, err
	}
	all := map[string]*revision{}
	for {
		entry, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		of, number, ok := parseRevisionKey(string(entry.GetKey()))
		if !ok {
			continue
		}
		at := &revision{Number: number, readAt: begun}
		at.decodeFrom(entry.GetValue())
		all[of] = at.mergeWith(all[of])
	}
	return all, nil
}

// mergeWith is the last of two pages, or more, of a subject, with what is known of the others.
func (at *revision) mergeWith(others *revision) *revision {
	if others == nil {
		return at
	}
	last, other := at, others
	later := others.Number > at.Number
	if at.Spent != others.Spent {
		later = at.Spent
	}
	if later {
		last, other = others, at
	}
	last.unmarked, last.spent = append(last.unmarked, other.unmarked...), append(last.spent, other.spent...)
	if other.Spent {
		last.spent = append(last.spent, other)
	} else {
		last.unmarked = append(last.unmarked, other)
	}
	return last
}

// parseRevisionKey is the subject of an entry, and the number of its page; entries without are not
// pages.
func parseRevisionKey(key string) (subject string, number uint64, ok bool) {
	i := strings.LastIndexByte(key, '/')
	if i < 0 || strings.HasPrefix(key, "h/") {
		return "", 0, false
	}
	number, err := strconv.ParseUint(key[i+1:], 10, 64)
	return key[:i], number, err == nil
}

const (
	// refreshAfter is when a page is written anew, so that it is not forgotten.
	refreshAfter = 24 * time.Hour
	// staleAfter is how long what was read of a subject may be gone by.
	staleAfter = 30 * time.Minute
	// retainSpent is how long it is known that a page is spent, or a subject is no more: until
	// nobody goes by what was before.
	retainSpent = 2 * staleAfter
	// markSpentAfter is when a page was left by whoever was to mark it as spent.
	markSpentAfter = time.Minute
)

// refreshAll sees to it that the pages are not forgotten that hold, of these, which are all; and
// that those are that do not matter any more.
func (b *store) refreshAll(ctx context.Context, all map[string]*revision) error {
	for of, at := range all {
		if err := b.refreshSubject(ctx, of, at); err != nil {
			return err
		}
	}
	return nil
}

func (b *store) refreshSubject(ctx context.Context, of string, at *revision) error {
	if at.isStale() {
		return nil // the next sweep reads it anew
	}
	age := time.Since(at.Written)
	young := len(at.unmarked)
	if age > markSpentAfter {
		for _, old := range at.unmarked {
			if err := b.markSpent(ctx, of, old, at.Number); err != nil {
				return err
			}
		}
	}
	for _, old := range at.spent {
		if time.Since(old.Written) <= retainSpent {
			young++
			continue
		}
		if err := b.deleteEntry(ctx, revisionKey(of, old.Number)); err != nil {
			return err
		}
	}
	switch {
	case at.Deleted && age > retainSpent && young == 0:
		return b.deleteSubject(ctx, of, at.Number)
	case at.Deleted || age <= refreshAfter:
		return nil
	}
	again := *at
	again.Written = time.Now().UTC()
	text, err := json.Marshal(&again)
	if err != nil {
		return err
	}
	_, err = b.updateDict(ctx, false, newEntry(revisionKey(of, at.Number), text), newHintEntry(of, at.Number))
	return err
}

// deleteSubject drops what is written of a subject that is no more.
func (b *store) deleteSubject(ctx context.Context, subject string, number uint64) error {
	b.forgetRevision(subject)
	if err := b.deleteEntry(ctx, hintKey(subject)); err != nil {
		return err
	}
	if err := b.deleteEntry(ctx, revisionKey(subject, number)); err != nil {
		return err
	}
	at, err := b.readRevision(ctx, subject, number+1)
	if at == nil || err != nil {
		return err
	}
	_, err = b.updateDict(ctx, false, newHintEntry(subject, at.Number)) // it has just been begun anew
	return err
}
