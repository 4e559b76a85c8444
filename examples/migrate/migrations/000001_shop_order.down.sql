DROP TABLE shop_order;
