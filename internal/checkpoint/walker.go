package checkpoint

import (
	"encoding/json"
	"fmt"
	"strconv"
)

// walker reads JSON token by token, strictly: exact keys, none twice, whole numbers only.
type walker struct{ dec *json.Decoder }

func (w *walker) delim(want json.Delim) error {
	tok, err := w.dec.Token()
	if err != nil {
		return err
	}
	if tok != want {
		return fmt.Errorf("%s where %q should be, at byte %d", describe(tok), want, w.dec.InputOffset())
	}
	return nil
}

// object reads an object and calls value to read the value of each key.
func (w *walker) object(value func(key string) error) error {
	if err := w.delim('{'); err != nil {
		return err
	}
	seen := map[string]bool{}
	for w.dec.More() {
		key, err := w.string()
		if err != nil {
			return err
		}
		if seen[key] {
			return fmt.Errorf("%q appears twice", clip(key))
		}
		seen[key] = true
		if err := value(key); err != nil {
			return err
		}
	}
	return w.delim('}')
}

func (w *walker) string() (string, error) {
	tok, err := w.dec.Token()
	if err != nil {
		return "", err
	}
	s, ok := tok.(string)
	if !ok {
		return "", fmt.Errorf("%s where a string should be, at byte %d", describe(tok), w.dec.InputOffset())
	}
	return s, nil
}

func (w *walker) uints() ([]uint64, error) {
	if err := w.delim('['); err != nil {
		return nil, err
	}
	list := []uint64{}
	for w.dec.More() {
		tok, err := w.dec.Token()
		if err != nil {
			return nil, err
		}
		num, ok := tok.(json.Number)
		if !ok {
			return nil, fmt.Errorf("%s where a number should be, at byte %d", describe(tok), w.dec.InputOffset())
		}
		n, err := strconv.ParseUint(num.String(), 10, 63)
		if err != nil {
			return nil, fmt.Errorf("%s is not a whole number in [0, 2^63)", clip(num.String()))
		}
		list = append(list, n)
	}
	return list, w.delim(']')
}

// entry reads a tensor's line of a safetensors header.
func (w *walker) entry(name string) (entry, error) {
	e := entry{tensor: Tensor{Name: name}}
	found := 0
	err := w.object(func(key string) error {
		found++
		switch key {
		case "dtype":
			s, err := w.string()
			e.tensor.DType = DType(s)
			return err
		case "shape":
			dims, err := w.uints()
			e.tensor.Shape = make([]int, len(dims))
			for i, d := range dims {
				if e.tensor.Shape[i] = int(d); uint64(e.tensor.Shape[i]) != d {
					return fmt.Errorf("dimension %d does not fit an int", d)
				}
			}
			return err
		case "data_offsets":
			o, err := w.uints()
			if err == nil && len(o) != 2 {
				err = fmt.Errorf("data_offsets has %d numbers, not 2", len(o))
			}
			if err == nil {
				e.begin, e.end = o[0], o[1]
			}
			return err
		}
		return fmt.Errorf("unknown key %q", clip(key))
	})
	if err == nil && found != 3 {
		err = fmt.Errorf("needs dtype, shape and data_offsets")
	}
	return e, err
}

func describe(tok json.Token) string {
	if s, ok := tok.(string); ok {
		return strconv.Quote(clip(s))
	}
	return clip(fmt.Sprint(tok))
}
