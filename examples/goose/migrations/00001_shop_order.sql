-- +goose Up
CREATE TABLE shop_order (order_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, email text NOT NULL);

-- +goose Down
DROP TABLE shop_order;
