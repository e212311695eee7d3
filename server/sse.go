package server

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
)

// events sends a request and calls each for every event of the answer's stream until it returns
// false. sse tells server-sent events, which end in [DONE] or a last event, from lines of JSON.
func (c *client) events(ctx context.Context, path string, body any, sse bool,
	each func(event []byte) (more bool, err error),
) error {
	res, err := c.send(ctx, http.MethodPost, path, body)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	request := "POST " + path
	r := bufio.NewReaderSize(res.Body, 64<<10)
	for {
		line, err := r.ReadBytes('\n')
		if ctx.Err() != nil { // whatever has arrived before it ended
			return c.explain(ctx, request, ctx.Err())
		}
		if event := bytes.TrimSpace(line); len(event) > 0 && (err == nil || errors.Is(err, io.EOF)) {
			more, eventErr := c.event(request, event, sse, each)
			if eventErr != nil || !more {
				return eventErr
			}
		}
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF // the last event has not come
		}
		if err != nil {
			return c.explain(ctx, request, fmt.Errorf("the stream was cut: %w", err))
		}
	}
}

func (c *client) event(request string, event []byte, sse bool, each func([]byte) (bool, error)) (bool, error) {
	if sse {
		var ok bool
		if event, ok = bytes.CutPrefix(event, []byte("data:")); !ok {
			if text, failed := bytes.CutPrefix(event, []byte("error:")); failed {
				return false, apiError(c.name, request, http.StatusInternalServerError, text)
			}
			return true, nil // a comment, or another field
		}
		if event = bytes.TrimSpace(event); string(event) == "[DONE]" {
			return false, nil
		}
	}
	var failed struct{ Error json.RawMessage }
	if json.Unmarshal(event, &failed) == nil && len(failed.Error) > 0 && string(failed.Error) != "null" {
		return false, apiError(c.name, request, http.StatusInternalServerError, event)
	}
	more, err := each(event)
	if err != nil {
		err = fmt.Errorf("server: %s: %s: an event that does not fit: %w: %.200s", c.name, request, err, event)
	}
	return more, err
}
