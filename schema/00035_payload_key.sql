-- +goose Up
-- The key of a payload is the same whatever standard_conforming_strings is.
-- With psql: psql -v ON_ERROR_STOP=1 -1 -f 00035_payload_key.sql

-- As in 00021, but for the regular expressions: backslashes mean the same in E'' strings only.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION outbox.resolve_key(given text, payload jsonb) RETURNS text
LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
  canonical text;
  resolved  text;
BEGIN
  IF given NOT LIKE '$payload%' THEN
    RETURN given;
  END IF;
  canonical := payload::text;
  IF canonical ~ '[.][0-9]*0' THEN
    canonical := regexp_replace(canonical,
      E'("(?:[^"\\\\]|\\\\.)*")|([.][0-9]*[1-9])0+(?![0-9])|[.]0+(?![0-9])', E'\\1\\2', 'g');
  END IF;
  resolved := '$payload:' || encode(sha256(convert_to(canonical, 'UTF8')), 'hex');
  IF given NOT IN ('$payload', resolved) THEN
    RAISE EXCEPTION
      'a unique key must not begin with $payload, which stands for the key of the payload'
      USING ERRCODE = 'check_violation';
  END IF;
  RETURN resolved;
END
$$;
-- +goose StatementEnd

INSERT INTO outbox.migration (version) VALUES (35) ON CONFLICT DO NOTHING;
