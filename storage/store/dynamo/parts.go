package dynamo

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/seed46cd37a8/atoll/agent"
)

const (
	// inItem is how large the texts of a message may be that has them in its item, which
	// may have 400 KB, twice over with its index.
	inItem = 128 << 10
	// perCall is what a tool's call takes besides its texts: names of attributes, and what
	// DynamoDB adds.
	perCall = 64
	// partSize is that of the others' parts.
	partSize = 256 << 10
)

// A wholeText is all texts of a message that has them in parts.
type wholeText struct {
	Body  string      `json:"body"`
	Calls []wholeCall `json:"calls,omitempty"`
}

// A wholeCall has the input to the byte, which JSON in JSON is not.
type wholeCall struct {
	agent.ToolCall
	Input string `json:"input,omitempty"`
}

// textSize is how large the texts of a message are in its item.
func textSize(m *agent.Message) int {
	n := len(m.Body)
	for _, c := range m.ToolCalls {
		n += perCall + len(c.ID) + len(c.Type) + len(c.Name) + len(c.Input) + len(c.Output) + len(c.Status) + len(c.Error)
	}
	return n
}

// putTexts adds the texts to the item of a message, or puts them into parts, of which
// it returns the keys.
func (s *Store) putTexts(ctx context.Context, it item, m *agent.Message, c claim, mark string) (keys []string, err error) {
	if textSize(m) <= inItem {
		setTexts(it, m)
		return nil, nil
	}
	text, err := encodeTexts(m)
	if err != nil {
		return nil, err
	}
	for len(text) > 0 {
		n := min(partSize, len(text))
		key := partKey(m.Key, mark, len(keys))
		keys = append(keys, key)
		err := s.put(ctx, messagesTable, item{
			attrConversation: it[attrConversation], attrKey: textOf(key), attrData: &types.AttributeValueMemberB{Value: text[:n]},
		})
		// One that is there already is this one: the answer was lost.
		if err != nil && !isRefused(err) {
			ctx, cancel := detached(ctx)
			defer cancel()
			_ = s.dropParts(ctx, m, c, keys) // the first error counts
			return nil, err
		}
		text = text[n:]
	}
	it[attrParts] = numberOf(int64(len(keys)))
	return keys, nil
}

func encodeTexts(m *agent.Message) ([]byte, error) {
	whole := wholeText{Body: m.Body}
	for _, c := range m.ToolCalls {
		whole.Calls = append(whole.Calls, wholeCall{c, string(c.Input)})
	}
	return json.Marshal(whole)
}

// partKey is below the key of a message: no message has such a key.
func partKey(key, mark string, n int) string { return fmt.Sprintf("%s/%s/%06d", key, mark, n) }

// partKeys are those of the parts of a message that was put with mark.
func partKeys(m *agent.Message, mark string) []string {
	if textSize(m) <= inItem {
		return nil
	}
	text, err := encodeTexts(m)
	if err != nil {
		return nil // then there are none
	}
	var keys []string
	for n := 0; n*partSize < len(text); n++ {
		keys = append(keys, partKey(m.Key, mark, n))
	}
	return keys
}

// dropParts removes the parts of a message that is not there.
func (s *Store) dropParts(ctx context.Context, m *agent.Message, c claim, keys []string) error {
	return s.removeAll(ctx, messagesTable, collection(m.Account, m.Conversation, c.birth), keys)
}

// readTexts reads the texts of a message that has them in parts.
func (s *Store) readTexts(ctx context.Context, hash string, f fields, m *agent.Message) error {
	var q selection
	q.table = messagesTable
	q.e.equals(textOf(hash), attrConversation)
	q.e.conds = append(q.e.conds, fmt.Sprintf("begins_with(%s, %s)", q.e.name(attrKey), q.e.value(textOf(m.Key+"/"+f.text(attrWrite)+"/"))))
	var text []byte
	n := int64(0)
	err := s.query(ctx, q, func(it item) error {
		part := fieldsOf(it)
		text = append(text, part.bytes(attrData)...)
		n++
		return *part.err
	})
	if err != nil {
		return err
	}
	var whole wholeText
	if n != f.number(attrParts) || json.Unmarshal(text, &whole) != nil {
		f.bad(attrParts)
		return *f.err
	}
	m.Body = whole.Body
	for _, c := range whole.Calls {
		call := c.ToolCall
		if c.Input != "" {
			call.Input = json.RawMessage(c.Input)
		}
		m.ToolCalls = append(m.ToolCalls, call)
	}
	return nil
}
