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

// all are the last pages of all subjects.
func (b *book) all(ctx context.Context) (all map[string]*page, err error) {
	err = b.ask(ctx, func(dict string) (err error) {
		all, err = b.contents(ctx, dict)
		for try := 1; try < allTries && isCode(err, codes.Unavailable) && ctx.Err() == nil; try++ {
			all, err = b.contents(ctx, dict)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	b.mu.Lock()
	known := maps.Clone(b.last)
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
		at, err := b.follow(ctx, of, number) // it may have been turned while the others were read
		if err != nil {
			return nil, err
		}
		if at == nil {
			b.unsee(of) // somebody has forgotten it
			continue
		}
		all[of] = at
	}
	for of, at := range all {
		b.seen(of, at.Number)
	}
	return all, nil
}

// allTries is how often all is asked for that breaks off.
const allTries = 3

// contents are the last pages that a Dict has, with those before them: spent ones where no
// other is seen.
func (b *book) contents(ctx context.Context, dict string) (map[string]*page, error) {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	begun := wall()
	stream, err := b.service.pb.DictContents(ctx, pb.DictContentsRequest_builder{DictId: dict, Keys: true, Values: true}.Build())
	if err != nil {
		return nil, err
	}
	all := map[string]*page{}
	for {
		entry, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		of, number, ok := entryOf(string(entry.GetKey()))
		if !ok {
			continue
		}
		at := &page{Number: number, read: begun}
		at.decode(entry.GetValue())
		all[of] = at.with(all[of])
	}
	return all, nil
}

// with is the last of two pages, or more, of a subject, with what is known of the others.
func (at *page) with(others *page) *page {
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
	last.behind, last.spent = append(last.behind, other.behind...), append(last.spent, other.spent...)
	if other.Spent {
		last.spent = append(last.spent, other)
	} else {
		last.behind = append(last.behind, other)
	}
	return last
}

// entryOf is the subject of an entry, and the number of its page; entries without are not
// pages.
func entryOf(key string) (subject string, number uint64, ok bool) {
	i := strings.LastIndexByte(key, '/')
	if i < 0 || strings.HasPrefix(key, "h/") {
		return "", 0, false
	}
	number, err := strconv.ParseUint(key[i+1:], 10, 64)
	return key[:i], number, err == nil
}

const (
	// keepAfter is when a page is written anew, so that it is not forgotten.
	keepAfter = 24 * time.Hour
	// staleAfter is how long what was read of a subject may be gone by.
	staleAfter = 30 * time.Minute
	// overFor is how long it is known that a page is spent, or a subject is no more: until
	// nobody goes by what was before.
	overFor = 2 * staleAfter
	// tidyAfter is when a page was left by whoever was to mark it as spent.
	tidyAfter = time.Minute
)

// keep sees to it that the pages are not forgotten that hold, of these, which are all; and
// that those are that do not matter any more.
func (b *book) keep(ctx context.Context, all map[string]*page) error {
	for of, at := range all {
		if err := b.keepPage(ctx, of, at); err != nil {
			return err
		}
	}
	return nil
}

func (b *book) keepPage(ctx context.Context, of string, at *page) error {
	if at.stale() {
		return nil // the next sweep reads it anew
	}
	age := time.Since(at.Written)
	young := len(at.behind)
	if age > tidyAfter {
		for _, old := range at.behind {
			if err := b.tidy(ctx, of, old, at.Number); err != nil {
				return err
			}
		}
	}
	for _, old := range at.spent {
		if time.Since(old.Written) <= overFor {
			young++
			continue
		}
		if err := b.drop(ctx, entryKey(of, old.Number)); err != nil {
			return err
		}
	}
	switch {
	case at.Over && age > overFor && young == 0:
		return b.forget(ctx, of, at.Number)
	case at.Over || age <= keepAfter:
		return nil
	}
	again := *at
	again.Written = time.Now().UTC()
	text, err := json.Marshal(&again)
	if err != nil {
		return err
	}
	_, err = b.update(ctx, false, entry(entryKey(of, at.Number), text), hintEntry(of, at.Number))
	return err
}

// forget drops what is written of a subject that is no more.
func (b *book) forget(ctx context.Context, subject string, number uint64) error {
	b.unsee(subject)
	if err := b.drop(ctx, hintKey(subject)); err != nil {
		return err
	}
	if err := b.drop(ctx, entryKey(subject, number)); err != nil {
		return err
	}
	at, err := b.get(ctx, subject, number+1)
	if at == nil || err != nil {
		return err
	}
	_, err = b.update(ctx, false, hintEntry(subject, at.Number)) // it has just been begun anew
	return err
}
