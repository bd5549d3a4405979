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

// readAllLatest returns the latest revision of every subject.
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
		if at.Spent { // its successor was written during the read
			known[of] = max(known[of], at.Number)
			delete(all, of)
		}
	}
	for of, number := range known {
		if all[of] != nil {
			continue
		}
		at, err := b.followRevisions(ctx, of, number) // a new one may have been written during the read
		if err != nil {
			return nil, err
		}
		if at == nil {
			b.forgetRevision(of) // another program has deleted it
			continue
		}
		all[of] = at
	}
	for of, at := range all {
		b.noteRevision(of, at.Number)
	}
	return all, nil
}

// readTries is the number of attempts to read all entries if the stream breaks off.
const readTries = 3

// readContents returns the latest revision of each subject in a Dict, with the earlier ones: a
// spent one if there is no other.
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

// mergeWith returns the latest of two revisions of a subject, with the earlier ones of both
// attached.
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

// parseRevisionKey returns the subject and the number of a revision's key; ok is false for
// other keys.
func parseRevisionKey(key string) (subject string, number uint64, ok bool) {
	i := strings.LastIndexByte(key, '/')
	if i < 0 || strings.HasPrefix(key, "h/") {
		return "", 0, false
	}
	number, err := strconv.ParseUint(key[i+1:], 10, 64)
	return key[:i], number, err == nil
}

const (
	// refreshAfter is the age at which a revision is rewritten, so that the Dict does not
	// forget it.
	refreshAfter = 24 * time.Hour
	// staleAfter is the time for which a program relies on a revision that it has read.
	staleAfter = 30 * time.Minute
	// retainSpent is the time for which spent revisions and removed subjects stay in the Dict:
	// until no program relies on an earlier state.
	retainSpent = 2 * staleAfter
	// markSpentAfter is the age at which another program marks a revision as spent if its
	// writer has not.
	markSpentAfter = time.Minute
)

// refreshAll rewrites old revisions so that the Dict does not forget them, and deletes those
// that no program needs any more. all has the latest revision of every subject.
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
		return nil // the next sweep reads it again
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

// deleteSubject deletes the last entries of a removed subject.
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
	_, err = b.updateDict(ctx, false, newHintEntry(subject, at.Number)) // the subject was just created again
	return err
}
